"""What the shipped recipes of compression lose, on six checkpoints and on texts that nothing saw.

  python tests/benchmarks compress --sst2 DIR --douban DIR --output output/compress
  python tests/benchmarks compress --output output/compress --steps none

A folder of data has train.tsv and dev.tsv. Before a checkpoint is trained, texts are set aside: of
SST-2's train 1,420 of 6,920, of Douban's train all but 2,000 (4,000 of them are answered). What is
chosen is chosen on train, what is accepted on dev (Douban: its first 2,000), as the recipes say.

Each step of each checkpoint is a command of `fleetbert`, run once: what is in --output is not done
again, so that a run that was stopped goes on. The tables tell what is there, notes.md after them. A
variant that its gate refuses is added without the gate, to be measured all the same. How fast they
are says `infer --bundle output/compress/sst2-0/run/bundle --data output/compress/sst2/unseen.tsv`.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple, Sequence

import numpy as np

from benchmarks import harness, infer
from benchmarks.harness import Result, Target
from fleetbert import bundle as bundles
from fleetbert.bench import infer as answering
from fleetbert.bench import infer_texts, measure
from fleetbert.bench.worker import Json
from fleetbert.compression import paired
from fleetbert.core.errors import UserError

REFUSED = 3  # the exit code of a gate
ORDER = "sorted"


class Data(NamedTuple):
    """How a data set is split, and what its jobs say besides the recipe."""

    train: int | None  # texts of train.tsv that are trained on; None: all that is not set aside
    unseen: int
    gate: int | None  # the first texts of dev.tsv
    config: str


class Checkpoint(NamedTuple):
    data: str
    seed: int
    ranks: int = 1


class Recipe(NamedTuple):
    """A step that adds a variant. fixed: an expression for what it says that it chose, and the keys
    that choose this again where the gate is left out."""

    variant: str
    command: str
    config: str
    train: str  # the key of the training table
    keys: Sequence[str] = ()
    fixed: tuple[str, Sequence[str]] | None = None


DATA = {
    "sst2": Data(None, 1420, None, "configs/sst2.yaml"),
    "douban": Data(2000, 4000, 2000, "configs/douban.yaml"),
}
CHECKPOINTS = {
    "sst2-0": Checkpoint("sst2", 0),
    "sst2-1": Checkpoint("sst2", 1),
    "douban-0": Checkpoint("douban", 0),
    "sst2-0-ranks": Checkpoint("sst2", 0, 2),
    "sst2-2": Checkpoint("sst2", 2),
    "douban-1": Checkpoint("douban", 1),
}
RECIPES = {
    "static": Recipe("int8-static", "quantize", "configs/quantize/static.yaml", "calibration.data"),
    "exit": Recipe(
        "early-exit-int8",
        "distill",
        "configs/distill/self.yaml",
        "data.train",
        ["sources=[int8-static]"],
        (
            r"groups end after layers ([\d, ]+), speed ([\d.]+)",
            ["distill.layers=[{}]", "distill.speed={}"],
        ),
    ),
    "onnx": Recipe("onnx-int8", "quantize", "configs/quantize/onnx.yaml", "calibration.data"),
    "qat": Recipe("int8-qat", "quantize", "configs/quantize/qat.yaml", "data.train"),
}
PEERS = {"ort-int8": infer.ORT8, "openvino-int8": "OpenVINO int8"}
STEPS = ("train", *RECIPES, *PEERS)
NAMES = {**{step: recipe.variant for step, recipe in RECIPES.items()}, **PEERS}
# Points that may be lost: mean, worst; gates that have to be passed of six.
TARGETS = {
    "int8-static": (0.2, 0.6, 6),
    "int8-qat": (0.1, 0.4, 5),
    "early-exit-int8": (0.5, 1.0, 5),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    harness.add_steps(parser, tuple(DATA), "compress", "train.tsv, dev.tsv")
    parser.add_argument(
        "--checkpoints", type=measure.words, default=list(CHECKPOINTS), metavar="A,B"
    )
    parser.add_argument(
        "--steps",
        type=measure.words,
        default=list(STEPS),
        metavar="A,B",
        help=f"{', '.join(STEPS)}; none: only the tables of what is there",
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--max-length", type=int, help="of a text's tokens, in training (128)")
    harness.add_peer(parser)


def run(arguments: argparse.Namespace) -> Result:
    for name in arguments.checkpoints:
        if name not in CHECKPOINTS:
            raise UserError(f"--checkpoints: {name} is none of {', '.join(CHECKPOINTS)}")
        folder = arguments.output.resolve() / name
        for step in (step for step in STEPS if step in arguments.steps):
            if step == "train" or (folder / "train.json").exists():
                make = functools.partial(_step, arguments, folder, step)
                harness.once(folder / f"{step}.json", make)
    return tell(arguments.output)


def _step(arguments: argparse.Namespace, folder: Path, step: str) -> Json:
    measure.say(f"{folder.name}: {step}")
    began = time.perf_counter()
    tables = split(arguments, CHECKPOINTS[folder.name].data)
    if step == "train":
        found = _train(arguments, folder, tables)
    elif step in RECIPES:
        found = _compress(arguments, folder, RECIPES[step], tables)
    else:
        harness.check_peer(arguments.peer_python, infer.PEERS[PEERS[step]].needs)
        found = _answers(arguments, folder, step, tables)
    return {**found, "seconds": round(time.perf_counter() - began), **harness.machine()}


def split(arguments: argparse.Namespace, data: str) -> dict[str, Path]:
    folder = arguments.output.resolve() / data
    tables = {name: folder / f"{name}.tsv" for name in ("train", "unseen", "gate")}
    if all(path.exists() for path in tables.values()):
        return tables
    source = getattr(arguments, data)
    if source is None:
        raise UserError(f"--{data}: name the folder that has train.tsv and dev.tsv")
    header, lines = harness.shuffled(source / "train.tsv", 38)
    sizes = DATA[data]
    unseen, train = lines[: sizes.unseen], lines[sizes.unseen :][: sizes.train]
    gate = (source / "dev.tsv").read_text(encoding="utf-8").rstrip("\n").split("\n")[1:]
    seen = {line.split("\t", 1)[1] for line in (*train, *gate)}
    unseen = [line for line in unseen if line.split("\t", 1)[1] not in seen]
    parts = {"train": train, "unseen": unseen, "gate": gate[: sizes.gate]}
    return harness.write_tables(folder, header, parts)


def _command(arguments: argparse.Namespace, log: Path, *words: str) -> int:
    """The exit code of a command in the repository's root, told into `log`."""
    environ = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
    with log.open("ab") as file:
        done = subprocess.run(
            words, env=environ, stdout=file, stderr=file, check=False, cwd=harness.ROOT
        )
    return done.returncode


def _train(arguments: argparse.Namespace, folder: Path, tables: dict[str, Path]) -> Json:
    checkpoint, run = CHECKPOINTS[folder.name], folder / "run"
    words = [
        "--config", DATA[checkpoint.data].config, f"data.train={tables['train']}",
        f"data.dev={tables['gate']}", f"trainer.seed={checkpoint.seed}", f"output_dir={run}",
    ]  # fmt: skip
    if arguments.max_length:
        words.append(f"data.max_length={arguments.max_length}")
    launch = []
    if checkpoint.ranks > 1:
        launch = ["-m", "paddle.distributed.launch", "--nproc_per_node", str(checkpoint.ranks)]
        launch += ["--log_dir", str(folder / "ranks")]
    log = folder / "train.log"
    if _command(arguments, log, sys.executable, *launch, "launch/train.py", *words):
        raise UserError(f"{folder.name}: training failed, see {log}")
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    shutil.rmtree(run / "checkpoints", ignore_errors=True)
    kept = {key: summary[key] for key in ("steps", "texts_per_s", "wall_s", "world_size")}
    kept["gate_accuracy"] = summary["dev"]["accuracy"]
    return {**kept, **_answers(arguments, folder, "float32", tables)}


def _compress(
    arguments: argparse.Namespace, folder: Path, recipe: Recipe, tables: dict[str, Path]
) -> Json:
    """The recipe as shipped; where its gate refuses, the same variant without."""
    log = folder / f"{recipe.variant}.log"
    words = [
        str(Path(sys.executable).with_name("fleetbert")), recipe.command,
        "--config", recipe.config, f"bundle={folder / 'run' / 'bundle'}",
        f"{recipe.train}={tables['train']}", f"gate.data={tables['gate']}",
        f"threads={arguments.threads}", *recipe.keys,
    ]  # fmt: skip
    if recipe.variant == "int8-qat":
        words.append(f"output_dir={folder / 'qat'}")
    code = again = _command(arguments, log, *words)
    if code == REFUSED:
        keys = _chosen(recipe, log.read_text(encoding="utf-8"))
        again = _command(arguments, log, *words, "gate.max_accuracy_drop=1", *keys)
    if again:
        raise UserError(f"{folder.name}: {recipe.variant} failed, see {log}")
    shutil.rmtree(folder / "qat" / "checkpoints", ignore_errors=True)
    bundle = bundles.read(folder / "run" / "bundle")
    if recipe.variant not in bundle.names:  # early exit that would not pay
        return {"accepted": False, "added": False}
    variant = bundle.variant(recipe.variant)
    measured = variant.accuracy[0]
    assert measured.drop is not None
    extra: Json = {"errors": getattr(variant, "output_errors", None) or {}}
    if isinstance(variant, bundles.EarlyExitVariant):
        extra.update(speed=variant.speed, times_faster=variant.times_faster)
    return {
        "accepted": code == 0,
        "added": True,
        "gate": {"n": measured.n, "accuracy": measured.accuracy, **measured.drop.model_dump()},
        **extra,
        **_answers(arguments, folder, recipe.variant, tables),
    }


def _chosen(recipe: Recipe, told: str) -> list[str]:
    """The keys that choose what a refused variant had chosen, by what its command has said."""
    if recipe.variant == "onnx-int8":
        from fleetbert.compression import onnx_int8  # loads Paddle

        tried = re.findall(r"(\w+) scales: (\d+) texts/s, drop ([-\d.]+)", told)[-2:]
        forms = {
            form: bundles.OnnxTried(drop=float(drop), texts_per_s=float(speed))
            for form, speed, drop in tried
        }
        return [f"onnx.activations={onnx_int8.choose(forms, 0.005)}"]
    if recipe.fixed is None:
        return []
    chosen = re.findall(recipe.fixed[0], told)[-1]
    return [key.format(one) for key, one in zip(recipe.fixed[1], chosen)]


def _answers(
    arguments: argparse.Namespace, folder: Path, engine: str, tables: dict[str, Path]
) -> Json:
    """Keep the logits of all unseen texts as ENGINE.npy, and tell what is lost against float32."""
    bundle = bundles.read(folder / "run" / "bundle")
    (folder / "texts").mkdir(exist_ok=True)
    texts = infer_texts.tokenize(bundle, str(tables["unseen"]), 10**6, [ORDER], folder / "texts")
    if engine in PEERS:
        first = next(iter(infer.PEERS[PEERS[engine]].settings.values()))
        job = {**infer.peer_job(bundle, str(tables["train"])), **first}
        opened = infer.open_peer(engine, job, texts, arguments.peer_python, arguments.threads)
    else:
        opened = answering.open_engine(bundle, engine, texts, arguments.threads)
    with opened as worker:
        worker.ask(plan=ORDER, speed=None, save=str(folder / f"{engine}.npy"))
    index = {label: number for number, label in enumerate(bundle.labels)}
    truth = np.array([index[example.label or ""] for example in texts.examples])
    both = [np.load(folder / f"{one}.npy").argmax(1) for one in ("float32", engine)]
    right = [one == truth for one in both]
    return {
        "unseen": {
            "n": len(truth),
            "accuracy": float(right[1].mean()),
            "agreement": float((both[0] == both[1]).mean()),
            **paired.of_answers(*right).model_dump(),
        }
    }


def tell(output: Path) -> Result:
    done: dict[str, dict[str, Json]] = {
        name: {
            step: json.loads(path.read_text(encoding="utf-8"))
            for step in STEPS
            for path in [output / name / f"{step}.json"]
            if path.exists()
        }
        for name in CHECKPOINTS
    }
    if not any(done.values()):
        raise UserError(f"{output} has no step yet; name --sst2 and --douban")
    of_variant = {
        variant: [steps[step] for steps in done.values() if step in steps]
        for step, variant in NAMES.items()
    }
    summary, targets = _summary(of_variant)
    missing = [
        f"{name}: {', '.join(step for step in STEPS if step not in steps)}"
        for name, steps in done.items()
        if len(steps) < len(STEPS)
    ]
    commits = sorted({one["commit"] for steps in done.values() for one in steps.values()})
    notes = [
        "Drops are in points of accuracy, with Tango's 95 % interval of the paired answers. The "
        "mean's ± is the root of the sum of their squares, as if checkpoints were independent: "
        "they answer the same texts.",
        "Unseen texts were set aside of train before training. Gate: as the recipe ships it "
        "(0.5 points; QAT 0.3), on dev, which trained nothing.",
        *([f"Not there yet: {'; '.join(missing)}."] if missing else []),
        f"Commits of the steps: {', '.join(commits)}.",
    ]
    remarks = output / "notes.md"
    if remarks.exists():
        notes.append(remarks.read_text(encoding="utf-8").strip())
    title = "What compression loses, on six checkpoints"
    return Result(title, [summary, _whole(done)], notes, done, targets)


def _summary(of_variant: dict[str, list[Json]]) -> tuple[list[list[str]], list[Target]]:
    """A row of each variant, over all checkpoints."""
    rows = [["variant", "checkpoints", "mean drop", "worst", "accepted", "error of layers, %"]]
    targets = []
    for variant, steps in of_variant.items():
        unseen = [step["unseen"] for step in steps if "unseen" in step]
        if not unseen:
            continue
        drops = [100 * one["value"] for one in unseen]
        mean, worst = statistics.mean(drops), max(drops)
        widths = [(one["high"] - one["low"]) / 3.92 for one in unseen]
        half = 196 * np.linalg.norm(widths) / len(drops)
        accepted = [step["accepted"] for step in steps if "accepted" in step]
        errors = [value for step in steps for value in (step.get("errors") or {}).values()]
        rows.append([
            variant, str(len(steps)), f"{mean:.2f} ± {half:.2f}", f"{worst:.2f}",
            f"{sum(accepted)} of {len(accepted)}" if accepted else "",
            f"{100 * statistics.median(errors):.1f} (median)" if errors else "",
        ])  # fmt: skip
        if variant in TARGETS:
            most, highest, passed = TARGETS[variant]
            part = sum(accepted) / len(accepted)
            targets += [
                Target(f"{variant}: mean drop, points", mean, most, at_most=True),
                Target(f"{variant}: worst drop", worst, highest, at_most=True),
                Target(f"{variant}: gates passed, part", part, round(passed / 6, 3)),
            ]
    return rows, targets


def _whole(done: dict[str, dict[str, Json]]) -> list[list[str]]:
    """A row of each variant of each checkpoint."""
    rows = [["checkpoint", "variant", "drop on the gate's texts", "gate", "accuracy",
             "drop on unseen texts", "lost, gained", "same answer"]]  # fmt: skip
    for name, steps in done.items():
        for step, one in steps.items():
            unseen = one.get("unseen")
            if unseen is None:
                cells = ["", "not added: would not pay", "", "", "", ""]
            elif step == "train":
                cells = ["", "", f"{unseen['accuracy']:.4f}", f"{unseen['n']} texts", "", ""]
            else:
                cells = [
                    _points(one["gate"]) if "gate" in one else "",
                    {True: "accepted", False: "refused", None: ""}[one.get("accepted")],
                    f"{unseen['accuracy']:.4f}", _points(unseen),
                    f"{unseen['lost']}, {unseen['gained']}", f"{unseen['agreement']:.1%}",
                ]  # fmt: skip
            rows.append([name, NAMES.get(step, "float32"), *cells])
    return rows


def _points(drop: Json) -> str:
    value, low, high = (100 * drop[key] for key in ("value", "low", "high"))
    return f"{value:.2f} ({low:.2f} to {high:.2f})"
