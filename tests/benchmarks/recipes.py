"""What the recipes of docs/train.md gain: fine-tuning with each of them, beside none.

  python tests/benchmarks recipes --sst2 DIR --douban DIR --output output/recipes
  python tests/benchmarks recipes --sst2 DIR --output output/recipes --only plain FGM

A folder of data has train.tsv. All train on the same 2,000 of its texts, choose their best step on
500 others, and are measured on 3,000 more that nothing saw. A run is not done again where --output
has it: a benchmark that was stopped goes on.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import shutil
import statistics
from pathlib import Path
from typing import Any, Mapping

import fleetbert
from benchmarks import harness
from benchmarks.harness import Result
from fleetbert.bench import measure
from fleetbert.bench.worker import Json
from fleetbert.core.errors import UserError

SIZES = {"train": 2000, "dev": 500, "unseen": 3000}
DATA = ("sst2", "douban")  # each has a file in configs/
COMMON = {
    "data.max_length": 64,
    "precision.level": "auto",
    "precision.dtype": "auto",
    "callbacks.report": False,
    "callbacks.visualdl": False,
    "callbacks.progress": False,
}
RECIPES: Mapping[str, Mapping[str, object]] = {
    "plain": {},
    "patience": {"trainer.epochs": 6, "trainer.eval_every": 31, "trainer.patience": 3},
    "class weights": {"loss.class_weights": "balanced"},
    "label smoothing": {"loss.label_smoothing": 0.1},
    "R-Drop": {"loss.r_drop": 1},
    "FGM": {"loss.adversarial": 0.1},
    "layer decay": {"optimizer.layer_decay": 0.9},
    "LAMB": {"optimizer.name": "lamb", "optimizer.learning_rate": 5e-4},
    "cosine": {"optimizer.schedule": "cosine"},
    "recompute": {"trainer.recompute": True},
    "R-Drop, layer decay": {"loss.r_drop": 1, "optimizer.layer_decay": 0.9},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    harness.add_steps(parser, DATA, "recipes", "its train.tsv")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=RECIPES, metavar="RECIPE", default=RECIPES)
    parser.add_argument("--threads", type=int, default=2)


def run(arguments: argparse.Namespace) -> Result:
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    for seed, recipe, data in itertools.product(range(arguments.seeds), arguments.only, DATA):
        source = getattr(arguments, data)
        if source is not None:
            done = arguments.output / f"{data}-{recipe}-{seed}.json"
            harness.once(done, functools.partial(train, source, data, recipe, seed, done))
    found = {path.stem: json.loads(path.read_text()) for path in arguments.output.glob("*.json")}
    tables = [table(found, data) for data in DATA]
    precisions = ", ".join(sorted({one["precision"] for one in found.values()}))
    notes = [
        f"Trained on {SIZES['train']:,} texts ({precisions}), 3 epochs of batches of 32 at 5e-5; "
        f"the best step by {SIZES['dev']} texts; measured on {SIZES['unseen']:,} others. "
        "±: deviation over seeds. Gain: the mean of the differences from plain, seed by seed, and "
        "its standard error.",
        "Patience: 6 epochs at most, evaluated every 31 steps. LAMB at 5e-4, the best of five "
        "rates from 2e-4 to 5e-3 for SST-2 with seed 0.",
    ]
    rows = [one for one in tables if len(one) > 1]
    return Result("What the recipes gain", rows, notes, {"runs": found})


def table(found: Mapping[str, Json], data: str) -> list[list[str]]:
    rows = [[data, "seeds", "accuracy, %", "gain, points", "time"]]

    def runs(recipe: str) -> dict[int, Json]:
        named = {seed: f"{data}-{recipe}-{seed}" for seed in range(99)}
        return {seed: found[name] for seed, name in named.items() if name in found}

    plain = runs("plain")
    for recipe in RECIPES:
        seeds = runs(recipe)
        both = sorted(set(seeds) & set(plain))
        if not both:
            continue
        accuracies = [100 * seeds[seed]["accuracy"] for seed in both]
        gains = [100 * (seeds[seed]["accuracy"] - plain[seed]["accuracy"]) for seed in both]
        times = statistics.median(seeds[seed]["wall_s"] / plain[seed]["wall_s"] for seed in both)
        gain = "" if recipe == "plain" else _spread(gains, len(both) ** 0.5)
        rows.append([recipe, str(len(both)), _spread(accuracies, 1), gain, f"{times:.2f}"])
    return rows


def _spread(values: list[float], divisor: float) -> str:
    if len(values) < 2:
        return f"{values[0]:.2f}"
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values) / divisor:.2f}"


def train(source: Path, data: str, recipe: str, seed: int, done: Path) -> Json:
    tables = split(source, done.with_name(data))
    measure.say(f"{data}: {recipe}, seed {seed}")
    output = done.with_suffix(".run")
    shutil.rmtree(output, ignore_errors=True)
    run = fleetbert.train(
        tables["train"],
        tables["dev"],
        config=harness.ROOT / f"configs/{data}.yaml",
        seed=seed,
        output_dir=output,
        **COMMON,
        **RECIPES[recipe],
    )
    metrics = fleetbert.load(run.bundle).evaluate(tables["unseen"])
    summary: Any = run.summary
    shutil.rmtree(output)
    return {
        **{name: metrics[name] for name in ("accuracy", "macro_f1", "loss")},
        **{name: summary[name] for name in ("wall_s", "steps", "precision")},
        "dev": run.metrics["accuracy"],
    }


def split(source: Path, folder: Path) -> dict[str, Path]:
    header, lines = harness.shuffled(source / "train.tsv", 43)
    if len(lines) < sum(SIZES.values()):
        raise UserError(f"{source}/train.tsv: needs {sum(SIZES.values()):,} texts")
    left = iter(lines)
    parts = {name: list(itertools.islice(left, size)) for name, size in SIZES.items()}
    return harness.write_tables(folder, header, parts)
