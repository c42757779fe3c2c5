"""What the recipes of docs/train.md gain: fine-tuning with each of them, beside none.

  python tests/benchmarks recipes --sst2 DIR --douban DIR --output output/recipes
  python tests/benchmarks recipes --sst2 DIR --output output/recipes --only plain FGM

A folder of data has train.tsv. All train on the same 2,000 of its texts, choose their best step on
500 others, and are measured on 3,000 more that nothing saw. Each run is a command of `fleetbert`,
and is not done again where --output has it: a benchmark that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Mapping

import numpy as np

from benchmarks import harness
from benchmarks.harness import Result
from fleetbert.bench import measure
from fleetbert.bench.worker import Json
from fleetbert.errors import UserError

SIZES = {"train": 2000, "dev": 500, "unseen": 3000}
DATA = ("sst2", "douban")  # each has a file in configs/
COMMON = (
    "data.max_length=64",
    "precision.level=auto",
    "precision.dtype=auto",
    "callbacks.report=false",
    "callbacks.visualdl=false",
    "callbacks.progress=false",
)
RECIPES: Mapping[str, tuple[str, ...]] = {
    "plain": (),
    "patience": ("trainer.epochs=6", "trainer.eval_every=31", "trainer.patience=3"),
    "class weights": ("loss.class_weights=balanced",),
    "label smoothing": ("loss.label_smoothing=0.1",),
    "R-Drop": ("loss.r_drop=1",),
    "FGM": ("loss.adversarial=0.1",),
    "layer decay": ("optimizer.layer_decay=0.9",),
    "LAMB": ("optimizer.name=lamb", "optimizer.learning_rate=5e-4"),
    "cosine": ("optimizer.schedule=cosine",),
    "recompute": ("trainer.recompute=true",),
    "R-Drop, layer decay": ("loss.r_drop=1", "optimizer.layer_decay=0.9"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name in DATA:
        parser.add_argument(f"--{name}", type=Path, metavar="DIR", help="has its train.tsv")
    parser.add_argument("--output", type=Path, default=Path("output/recipes"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=RECIPES, metavar="RECIPE", default=RECIPES)
    parser.add_argument("--threads", type=int, default=2)


def run(arguments: argparse.Namespace) -> Result:
    for seed in range(arguments.seeds):
        for recipe in arguments.only:
            for data in DATA:
                if getattr(arguments, data) is not None:
                    once(arguments, data, recipe, seed)
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
        rows.append(
            [
                recipe,
                str(len(both)),
                _spread(accuracies, 1),
                "" if recipe == "plain" else _spread(gains, len(both) ** 0.5),
                f"{times:.2f}",
            ]
        )
    return rows


def _spread(values: list[float], divisor: float) -> str:
    if len(values) < 2:
        return f"{values[0]:.2f}"
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values) / divisor:.2f}"


def once(arguments: argparse.Namespace, data: str, recipe: str, seed: int) -> None:
    done = arguments.output / f"{data}-{recipe}-{seed}.json"
    if done.exists():
        return
    tables = split(getattr(arguments, data), arguments.output / data)
    measure.say(f"{data}: {recipe}, seed {seed}")
    output = done.with_suffix(".run")
    shutil.rmtree(output, ignore_errors=True)
    words = [
        *COMMON, f"data.train={tables['train']}", f"data.dev={tables['dev']}",
        f"trainer.seed={seed}", f"output_dir={output}", *RECIPES[recipe],
    ]  # fmt: skip
    command(arguments, "train", "--config", str(harness.ROOT / f"configs/{data}.yaml"), *words)
    summary = json.loads((output / "summary.json").read_text())
    told = command(
        arguments, "evaluate", "--bundle", f"{output}/bundle", "--data", str(tables["unseen"]),
        "--json",
    )  # fmt: skip
    metrics = json.loads(told)
    kept = {name: metrics[name] for name in ("accuracy", "macro_f1", "loss")}
    kept.update(
        wall_s=summary["wall_s"],
        steps=summary["steps"],
        dev=summary["dev"]["accuracy"],
        precision=summary["precision"],
    )
    harness.write_once(done, kept)
    shutil.rmtree(output)


def split(source: Path, folder: Path) -> dict[str, Path]:
    paths = {name: folder / f"{name}.tsv" for name in SIZES}
    if all(path.exists() for path in paths.values()):
        return paths
    header, *lines = (source / "train.tsv").read_text(encoding="utf-8").rstrip("\n").split("\n")
    order = np.random.default_rng(43).permutation(len(lines))
    if len(lines) < sum(SIZES.values()):
        raise UserError(f"{source}/train.tsv: needs {sum(SIZES.values()):,} texts")
    folder.mkdir(parents=True, exist_ok=True)
    start = 0
    for name, size in SIZES.items():
        part = [lines[number] for number in order[start : start + size]]
        paths[name].write_text("\n".join([header, *part]) + "\n", encoding="utf-8")
        start += size
    return paths


def command(arguments: argparse.Namespace, *words: str) -> str:
    environ = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
    program = str(Path(sys.executable).with_name("fleetbert"))
    done = subprocess.run([program, *words], env=environ, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"fleetbert {' '.join(words)}: {done.stderr[-2000:]}")
    return done.stdout
