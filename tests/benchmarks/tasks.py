"""A page of what finetune.py, stsb.py and trec_qa.py have measured; measures nothing itself.

  python tests/benchmarks tasks --results output/tasks.jsonl

These three add a line to a file of results for each run. Runs that differ only in their seed are
one row: means.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Iterator, List

import numpy as np

from benchmarks.harness import Result, Target

Row = List[Any]  # of dicts: the runs of one row, which differ in their seeds
# Beside transformers: what may be lacking of its figure, and how much of its time may be needed.
MARGIN, TIME = 0.01, 0.6
INT8_DROP, INT8_SPEED, VECTORS_DROP, RANKING_GAIN = 0.01, 2.5, 0.005, 0.02


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--results", type=Path, nargs="+", default=[Path("output/tasks.jsonl")])


def add_result(path: Path, row: dict[str, Any]) -> None:
    """One line, at once: what is measured later may be stopped."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def run(arguments: argparse.Namespace) -> Result:
    lines = [line for path in arguments.results for line in path.read_text("utf-8").splitlines()]
    results = [json.loads(line) for line in lines]
    rows = [*rows_of(results)]
    tuned = [row for row in rows if "peer" in row[0]]
    tables = [
        [
            [
                "data", "weights", "figure", "ours", "transformers", "difference", "seeds",
                "seconds", "theirs", "of theirs", "load",
            ],
            *map(beside_peer, tuned),
        ],
        [
            ["int8-static of", "float32", "int8", "loses", "times its texts/s"],
            *(int8(row) for row in rows if "int8" in row[0]),
        ],
        [
            ["calibrated", "at 0.5", "own thresholds", "ECE before", "after"],
            *(calibrated(row) for row in rows if "ece" in row[0]),
        ],
        [
            ["ranked by", "MAP", "cosine untrained", "gain", "seeds"],
            *(ranked(row) for row in rows if "cosine" in row[0]),
        ],
    ]  # fmt: skip
    return Result(
        "Tasks: beside transformers, and in int8",
        [table for table in tables if len(table) > 1],
        [
            "Both sides have the same weights, texts, epochs, batch, rates, warm-up, decay and "
            "clipping; the last step counts. Seconds are of the training's steps alone, one after "
            "the other on a machine with other work (load: least and most while they ran), so "
            "their ratio only hints.",
            *(described(row) for row in rows if "train" in row[0]),
        ],
        {"results": results},
        [*targets(rows)],
    )


def rows_of(results: list[dict[str, Any]]) -> Iterator[Row]:
    own = ("name", "init", "epochs", "batch_size", "learning_rate", "task", "threads")
    groups: dict[tuple[Any, ...], Row] = {}
    for one in results:
        groups.setdefault(tuple(one.get(key) for key in own), []).append(one)
    yield from groups.values()


def mean(row: Row, key: str) -> float:
    return float(np.mean([one[key] for one in row]))


def seeds(row: Row, key: str) -> str:
    return " ".join(f"{one[key]:.4f}" for one in row)


def beside_peer(row: Row) -> list[str]:
    ours, peer = mean(row, "figure"), mean(row, "peer")
    seconds, theirs = mean(row, "seconds"), mean(row, "peer_seconds")
    loads = [load for one in row for load in one["load"]]
    return [
        row[0]["name"], row[0]["init"], row[0]["metric"], f"{ours:.4f}", f"{peer:.4f}",
        f"{ours - peer:+.4f}", f"{seeds(row, 'figure')} / {seeds(row, 'peer')}",
        f"{seconds:.0f}", f"{theirs:.0f}", f"{seconds / theirs:.2f}",
        f"{min(loads):.1f} to {max(loads):.1f}",
    ]  # fmt: skip


def int8(row: Row) -> list[str]:
    own = f"{mean(row, 'int8') + mean(row, 'int8_drop'):.4f}", f"{mean(row, 'int8'):.4f}"
    rest = f"{mean(row, 'int8_drop'):+.4f}", f"{mean(row, 'int8_speed'):.2f}"
    return [row[0]["name"], *own, *rest]


def calibrated(row: Row) -> list[str]:
    keys = ("figure", "calibrated", "ece", "calibrated_ece")
    return [f"{row[0]['name']}, {row[0]['metric']}", *(f"{mean(row, key):.4f}" for key in keys)]


def ranked(row: Row) -> list[str]:
    found, cosine = mean(row, "figure"), mean(row, "cosine")
    own = {"embedding": "cosine of trained vectors", "ranking": "cross-encoder"}[row[0]["task"]]
    epochs = f"{own}, {row[0]['epochs']} epochs"
    return [epochs, f"{found:.4f}", f"{cosine:.4f}", f"{found - cosine:+.4f}", seeds(row, "figure")]


def described(row: Row) -> str:
    one = row[0]
    return (
        f"{one['name']}: {one['train']} training and {one['dev']} dev texts, {one['epochs']} "
        f"epochs, batch {one['batch_size']}, rate {one['learning_rate']:g}, {one['threads']} "
        f"threads{'' if 'peer' in one else '; transformers was not run'}."
    )


def targets(rows: list[Row]) -> Iterator[Target]:
    for row in rows:
        name = row[0]["name"]
        if "peer" in row[0]:
            difference = mean(row, "figure") - mean(row, "peer")
            yield Target(f"{name}: {row[0]['metric']} less transformers'", difference, -MARGIN)
        if "peer" in row[0] and name == "wnut17":
            took = mean(row, "seconds") / mean(row, "peer_seconds")
            yield Target(f"{name}: of transformers' training time", took, TIME, at_most=True)
        if "int8" in row[0]:
            limit = VECTORS_DROP if row[0].get("task") == "embedding" else INT8_DROP
            yield Target(f"{name}: int8-static loses", mean(row, "int8_drop"), limit, at_most=True)
        if "int8" in row[0] and name == "wnut17":
            yield Target(f"{name}: int8-static's speed", mean(row, "int8_speed"), INT8_SPEED)
        if "ece" in row[0]:
            fell = mean(row, "calibrated_ece") - mean(row, "ece")
            yield Target(f"{name}: change of the calibration error", fell, 0.0, at_most=True)
            gain = mean(row, "calibrated") - mean(row, "figure")
            yield Target(f"{name}: gain by thresholds", gain, 0.0)
        if "cosine" in row[0]:
            gain = mean(row, "figure") - mean(row, "cosine")
            yield Target(f"{name}, {row[0]['task']}: MAP less the cosine's", gain, RANKING_GAIN)
