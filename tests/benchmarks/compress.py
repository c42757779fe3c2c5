"""What the shipped recipes of compression lose, on six checkpoints and on texts that nothing saw.

  python tests/benchmarks compress --sst2 DIR --douban DIR --output output/compress
  python tests/benchmarks compress --output output/compress --steps none --speeds sst2-0,douban-0

A folder of data has train.tsv and dev.tsv. Before a checkpoint is trained, texts are set aside: of
SST-2's train 1,420 of 6,920, of Douban's train all but 2,000 (4,000 of them are answered). What is
chosen is chosen on train, what is accepted on dev (Douban: its first 2,000), as the recipes say.

Each step of each checkpoint is a command of `fleetbert`, run once: what is in --output is not done
again, so that a run that was stopped goes on. The tables tell what is there, notes.md after them. A
variant that its gate refuses is added without the gate, to be measured all the same.
"""

from __future__ import annotations

import argparse
import contextlib
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

from benchmarks import harness, infer, models
from benchmarks.harness import Result, Target
from fleetbert import bundle as bundles
from fleetbert.bench import infer as answering
from fleetbert.bench import measure
from fleetbert.bench.worker import Json
from fleetbert.compress import onnx_int8, paired
from fleetbert.errors import UserError

REFUSED = 3  # the exit code of a gate
ORDER = "sorted"
CALIBRATION_TEXTS = 512


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
PEERS = {"ort-int8": "ONNX Runtime dynamic int8", "openvino-int8": "OpenVINO int8"}
STEPS = ("train", *RECIPES, *PEERS)
# Points that may be lost: mean, worst; gates that have to be passed of six.
TARGETS = {
    "int8-static": (0.2, 0.6, 6),
    "int8-qat": (0.1, 0.4, 5),
    "early-exit-int8": (0.5, 1.0, 5),
}
# Times the texts/s of another.
SPEEDS = (
    ("int8-static", "float32", 2.9),
    ("int8-static", PEERS["ort-int8"], 1.4),
    ("int8-qat", "float32", 2.9),
    ("early-exit-int8", "int8-static", 1.3),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name in DATA:
        parser.add_argument(f"--{name}", type=Path, metavar="DIR", help="has train.tsv, dev.tsv")
    parser.add_argument(
        "--output", type=Path, default=Path("output/compress"), metavar="DIR", help="of all steps"
    )
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
    parser.add_argument(
        "--speeds", type=measure.words, default=[], metavar="A,B", help="checkpoints that are timed"
    )
    parser.add_argument("--rounds", type=int, default=5, help="of --speeds")
    parser.add_argument("--max-length", type=int, help="of a text's tokens, in training (128)")
    harness.add_peer(parser)


def run(arguments: argparse.Namespace) -> Result:
    for name in arguments.checkpoints:
        if name not in CHECKPOINTS:
            raise UserError(f"--checkpoints: {name} is none of {', '.join(CHECKPOINTS)}")
    for name in arguments.checkpoints:
        for step in (step for step in STEPS if step in arguments.steps):
            _once(arguments, name, step)
    for name in arguments.speeds:
        _time(arguments, name)
    return tell(arguments.output)


def _once(arguments: argparse.Namespace, name: str, step: str) -> None:
    """Do the step unless its file says that it is done, or there is nothing trained yet."""
    folder = arguments.output / name
    done = folder / f"{step}.json"
    if done.exists() or not (step == "train" or (folder / "train.json").exists()):
        return
    folder.mkdir(parents=True, exist_ok=True)
    measure.say(f"{name}: {step}")
    began = time.perf_counter()
    tables = split(arguments, CHECKPOINTS[name].data)
    if step == "train":
        found = _train(arguments, name, tables)
    elif step in RECIPES:
        found = _compress(arguments, name, RECIPES[step], tables)
    else:
        harness.check_peer(arguments.peer_python, infer.PEERS[step].needs)
        found = _answers(arguments, name, step, tables)
    found = {**found, "seconds": round(time.perf_counter() - began), **harness.machine()}
    harness.write_once(done, found)


def split(arguments: argparse.Namespace, data: str) -> dict[str, Path]:
    folder = arguments.output / data
    tables = {name: folder / f"{name}.tsv" for name in ("train", "unseen", "gate")}
    if all(path.exists() for path in tables.values()):
        return tables
    source = getattr(arguments, data)
    if source is None:
        raise UserError(f"--{data}: name the folder that has train.tsv and dev.tsv")
    folder.mkdir(parents=True, exist_ok=True)
    header, *lines = (source / "train.tsv").read_text(encoding="utf-8").rstrip("\n").split("\n")
    order = np.random.default_rng(38).permutation(len(lines))
    sizes = DATA[data]
    most = len(lines) - sizes.unseen
    train = order[sizes.unseen :][: sizes.train or most]
    gate = (source / "dev.tsv").read_text(encoding="utf-8").rstrip("\n").split("\n")
    seen = {lines[number].split("\t", 1)[1] for number in train} | {
        line.split("\t", 1)[1] for line in gate[1:]
    }
    unseen = [lines[number] for number in sorted(order[: sizes.unseen])]
    parts = {
        "train": [lines[number] for number in sorted(train)],
        "unseen": [line for line in unseen if line.split("\t", 1)[1] not in seen],
        "gate": gate[1:][: sizes.gate],
    }
    for name, part in parts.items():
        tables[name].write_text("\n".join([header, *part]) + "\n", encoding="utf-8")
    return tables


def _command(arguments: argparse.Namespace, words: Sequence[str], log: Path) -> int:
    """The exit code of a command in the repository's root, told into `log`."""
    environ = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
    with log.open("ab") as file:
        done = subprocess.run(
            list(words), env=environ, stdout=file, stderr=file, check=False, cwd=harness.ROOT
        )
    return done.returncode


def _fleetbert(*words: str) -> list[str]:
    return [str(Path(sys.executable).with_name("fleetbert")), *words]


def _train(arguments: argparse.Namespace, name: str, tables: dict[str, Path]) -> Json:
    checkpoint = CHECKPOINTS[name]
    run = (arguments.output / name / "run").resolve()
    words = [
        "--config", DATA[checkpoint.data].config, f"data.train={tables['train'].resolve()}",
        f"data.dev={tables['gate'].resolve()}", f"trainer.seed={checkpoint.seed}",
        f"output_dir={run}",
    ]  # fmt: skip
    if arguments.max_length:
        words.append(f"data.max_length={arguments.max_length}")
    command = _fleetbert("train", *words)
    if checkpoint.ranks > 1:
        launch = ["-m", "paddle.distributed.launch", "--nproc_per_node", str(checkpoint.ranks)]
        logs = ["--log_dir", str(run.with_name("ranks"))]
        command = [sys.executable, *launch, *logs, "launch/train.py", *words]
    log = run.with_name("train.log")
    if _command(arguments, command, log):
        raise UserError(f"{name}: training failed, see {log}")
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    shutil.rmtree(run / "checkpoints", ignore_errors=True)
    unseen = _answers(arguments, name, "float32", tables)
    kept = {key: summary[key] for key in ("steps", "texts_per_s", "wall_s", "world_size")}
    return {**kept, "gate_accuracy": summary["dev"]["accuracy"], **unseen}


def _compress(
    arguments: argparse.Namespace, name: str, recipe: Recipe, tables: dict[str, Path]
) -> Json:
    """The recipe as shipped; where its gate refuses, the same variant without."""
    folder = (arguments.output / name).resolve()
    log = folder / f"{recipe.variant}.log"
    words = [
        recipe.command, "--config", recipe.config, f"bundle={folder / 'run' / 'bundle'}",
        f"{recipe.train}={tables['train'].resolve()}", f"gate.data={tables['gate'].resolve()}",
        f"threads={arguments.threads}", *recipe.keys,
    ]  # fmt: skip
    if recipe.variant == "int8-qat":
        words.append(f"output_dir={folder / 'qat'}")
    code = _command(arguments, _fleetbert(*words), log)
    told = log.read_text(encoding="utf-8")
    if code == REFUSED:
        again = [*words, "gate.max_accuracy_drop=1"]
        if recipe.fixed is not None:
            chosen = re.findall(recipe.fixed[0], told)[-1]
            again += [key.format(one) for key, one in zip(recipe.fixed[1], chosen)]
        if recipe.variant == "onnx-int8":
            tried = re.findall(r"(\w+) scales: (\d+) texts/s, drop ([-\d.]+)", told)[-2:]
            forms = {
                form: bundles.OnnxTried(drop=float(drop), texts_per_s=float(speed))
                for form, speed, drop in tried
            }
            again.append(f"onnx.activations={onnx_int8.choose(forms, 0.005)}")
        if _command(arguments, _fleetbert(*again), log):
            raise UserError(f"{name}: {recipe.variant} without its gate failed, see {log}")
    elif code:
        raise UserError(f"{name}: {recipe.variant} failed with exit code {code}, see {log}")
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
        **_answers(arguments, name, recipe.variant, tables),
    }


def _open(
    arguments: argparse.Namespace, name: str, engine: str, texts: answering.Texts, folder: Path
) -> measure.Worker:
    """A process in which a variant or a peer answers the texts; a peer's model is made once."""
    root = arguments.output / name
    bundle = bundles.read(root / "run" / "bundle")
    if engine not in PEERS:
        return answering.open_engine(bundle, engine, texts, arguments.threads)
    bundle = models.with_onnx(bundle, root / "run" / "bundle")
    job = folder / "job.json"
    if not job.exists():
        folder.mkdir(exist_ok=True)
        shutil.rmtree(folder / engine, ignore_errors=True)
        calibration = answering.tokenize(
            bundle, str(split(arguments, CHECKPOINTS[name].data)["train"]), CALIBRATION_TEXTS,
            [ORDER], folder,
        )  # fmt: skip
        made = infer.peer_model(engine, bundle, calibration, folder.resolve())
        job.write_text(json.dumps(made), encoding="utf-8")
    made = json.loads(job.read_text(encoding="utf-8"))
    return infer.open_peer(engine, made, texts, arguments)


def _answers(
    arguments: argparse.Namespace, name: str, engine: str, tables: dict[str, Path]
) -> Json:
    """Keep the logits of all unseen texts as ENGINE.npy, and tell what is lost against float32."""
    root = arguments.output / name
    folder = root / "texts"
    folder.mkdir(exist_ok=True)
    bundle = bundles.read(root / "run" / "bundle")
    texts = answering.tokenize(bundle, str(tables["unseen"]), 10**6, [ORDER], folder)
    with _open(arguments, name, engine, texts, root / engine) as worker:
        worker.ask(plan=ORDER, speed=None, save=str((root / f"{engine}.npy").resolve()))
    index = {label: number for number, label in enumerate(bundle.labels)}
    truth = np.array([index[example.label or ""] for example in texts.examples])
    both = [np.load(root / f"{one}.npy").argmax(1) for one in ("float32", engine)]
    right = [one == truth for one in both]
    return {
        "unseen": {
            "n": len(truth),
            "accuracy": float(right[1].mean()),
            "agreement": float((both[0] == both[1]).mean()),
            **paired.of_answers(*right).model_dump(),
        }
    }


def _time(arguments: argparse.Namespace, name: str) -> None:
    """Texts/s of all that is there, by turns; wants a machine on which nothing else runs."""
    root = arguments.output / name
    bundle = bundles.read(root / "run" / "bundle")
    engines = ["float32", *(one.variant for one in RECIPES.values() if one.variant in bundle.names)]
    engines += [peer for peer in PEERS if (root / f"{peer}.json").exists()]
    folder = root / "speeds"
    folder.mkdir(exist_ok=True)
    unseen = str(split(arguments, CHECKPOINTS[name].data)["unseen"])
    texts = answering.tokenize(bundle, unseen, 1000, [ORDER], folder)
    with contextlib.ExitStack() as stack:
        rows = {
            engine: answering.Row(
                engine,
                ORDER,
                stack.enter_context(_open(arguments, name, engine, texts, root / engine)),
            )
            for engine in engines
        }
        measured, segments = answering.answer(rows, texts, bundle.labels, arguments.rounds)
    found = {
        "threads": arguments.threads,
        "load": max(segment.load for segment in segments),
        "texts_per_s": {engine: row.figures.texts_per_s for engine, row in measured.items()},
        "ratios": [
            [PEERS.get(engine, engine), PEERS.get(other, other),
             measure.ratio(segments, engine, other).median]
            for engine in engines for other in engines if engine != other
        ],
        **harness.machine(),
    }  # fmt: skip
    (root / "speeds.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


def _points(drop: Json) -> str:
    value, low, high = (100 * drop[key] for key in ("value", "low", "high"))
    return f"{value:.2f} ({low:.2f} to {high:.2f})"


def tell(output: Path) -> Result:
    found: dict[str, dict[str, Json]] = {}
    for name in CHECKPOINTS:
        paths = {step: output / name / f"{step}.json" for step in (*STEPS, "speeds")}
        done = {step: path for step, path in paths.items() if path.exists()}
        if done:
            found[name] = {step: json.loads(path.read_text("utf-8")) for step, path in done.items()}
    if not found:
        raise UserError(f"{output} has no step yet; name --sst2 and --douban")
    names = {**{step: recipe.variant for step, recipe in RECIPES.items()}, **PEERS}
    whole = [["checkpoint", "variant", "drop on the gate's texts", "gate", "accuracy",
              "drop on unseen texts", "lost, gained", "same answer"]]  # fmt: skip
    for name, steps in found.items():
        if "train" in steps:
            trained = steps["train"]
            unseen = trained["unseen"]
            whole.append([name, "float32", "", "", f"{unseen['accuracy']:.4f}",
                          f"{unseen['n']} texts", "", ""])  # fmt: skip
        for step, variant in names.items():
            one = steps.get(step)
            if one is None:
                continue
            if "unseen" not in one:
                whole.append([name, variant, "", "not added: would not pay", "", "", "", ""])
                continue
            unseen = one["unseen"]
            whole.append([
                name, variant, _points(one["gate"]) if "gate" in one else "",
                {True: "accepted", False: "refused", None: ""}[one.get("accepted")],
                f"{unseen['accuracy']:.4f}", _points(unseen),
                f"{unseen['lost']}, {unseen['gained']}", f"{unseen['agreement']:.1%}",
            ])  # fmt: skip
    of_variant: dict[str, list[Json]] = {
        variant: [steps[step] for steps in found.values() if step in steps]
        for step, variant in names.items()
    }
    summary = [["variant", "checkpoints", "mean drop", "worst", "accepted", "error of layers, %"]]
    targets = []
    for variant, ones in of_variant.items():
        unseen = [one["unseen"] for one in ones if "unseen" in one]
        drops = [100 * one["value"] for one in unseen]
        if not drops:
            continue
        mean = statistics.mean(drops)
        widths = [(one["high"] - one["low"]) / 3.92 for one in unseen]
        half = 196 * np.linalg.norm(widths) / len(drops)
        accepted = [one["accepted"] for one in ones if "accepted" in one]
        errors = [value for one in ones for value in (one.get("errors") or {}).values()]
        summary.append([
            variant, str(len(ones)), f"{mean:.2f} ± {half:.2f}", f"{max(drops):.2f}",
            f"{sum(accepted)} of {len(accepted)}" if accepted else "",
            f"{100 * statistics.median(errors):.1f} (median)" if errors else "",
        ])  # fmt: skip
        if variant in TARGETS:
            most, worst, passed = TARGETS[variant]
            part = sum(accepted) / len(accepted)
            targets += [
                Target(f"{variant}: mean drop, points", mean, most, at_most=True),
                Target(f"{variant}: worst drop", max(drops), worst, at_most=True),
                Target(f"{variant}: gates passed, part", part, round(passed / 6, 3)),
            ]
    tables = [summary, whole]
    timed = {name: steps["speeds"] for name, steps in found.items() if "speeds" in steps}
    if timed:
        rows = [["texts/s, sorted", *timed]]
        for step, engine in {"": "float32", **names}.items():
            told = [one["texts_per_s"] for one in timed.values()]
            speeds = [one.get(step if step in PEERS else engine) for one in told]
            rows.append([engine, *("-" if one is None else f"{one:.0f}" for one in speeds)])
        tables.append(rows)
        for name, one in timed.items():
            ratios = {(engine, other): value for engine, other, value in one["ratios"]}
            targets += [
                Target(f"{name}: {engine} beside {other}, texts/s", ratios[engine, other], least)
                for engine, other, least in SPEEDS
                if (engine, other) in ratios
            ]
    lacking = {name: [s for s in STEPS if s not in found.get(name, {})] for name in CHECKPOINTS}
    missing = [f"{name}: {', '.join(steps)}" for name, steps in lacking.items() if steps]
    commits = sorted({one["commit"] for steps in found.values() for one in steps.values()})
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
    return Result("What compression loses, on six checkpoints", tables, notes, found, targets)
