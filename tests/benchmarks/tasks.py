"""A page of what finetune.py, stsb.py and trec_qa.py have measured; measures nothing itself.

  python tests/benchmarks tasks --results output/tasks.jsonl

These three add a line to a file of results for each run. Runs that differ only in their seed are
one row: means.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Callable, Iterator, List

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
    tables = []
    for key, (header, cells) in TABLES.items():
        told = [cells(row) for row in rows if key in row[0]]
        if told:
            tables.append([header, *told])
    notes = [
        "Both sides have the same weights, texts, epochs, batch, rates, warm-up, decay and "
        "clipping; the last step counts. Seconds are of the training's steps alone, one after "
        "the other on a machine with other work (load: least and most while they ran), so "
        "their ratio only hints.",
        *(described(row) for row in rows if "train" in row[0]),
    ]
    title = "Tasks: beside transformers, and in int8"
    return Result(title, tables, notes, {"results": results}, [*targets(rows)])


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


def means(row: Row, *keys: str) -> list[str]:
    return [f"{mean(row, key):.4f}" for key in keys]


def beside_peer(row: Row) -> list[str]:
    seconds, theirs = mean(row, "seconds"), mean(row, "peer_seconds")
    loads = [load for one in row for load in one["load"]]
    return [
        row[0]["name"], row[0]["init"], row[0]["metric"], *means(row, "figure", "peer"),
        f"{mean(row, 'figure') - mean(row, 'peer'):+.4f}",
        f"{seeds(row, 'figure')} / {seeds(row, 'peer')}",
        f"{seconds:.0f}", f"{theirs:.0f}", f"{seconds / theirs:.2f}",
        f"{min(loads):.1f} to {max(loads):.1f}",
    ]  # fmt: skip


def int8(row: Row) -> list[str]:
    float32 = mean(row, "int8") + mean(row, "int8_drop")
    rest = f"{mean(row, 'int8_drop'):+.4f}", f"{mean(row, 'int8_speed'):.2f}"
    return [row[0]["name"], f"{float32:.4f}", *means(row, "int8"), *rest]


def calibrated(row: Row) -> list[str]:
    keys = ("figure", "calibrated", "ece", "calibrated_ece")
    return [f"{row[0]['name']}, {row[0]['metric']}", *means(row, *keys)]


def ranked(row: Row) -> list[str]:
    own = {"embedding": "cosine of trained vectors", "ranking": "cross-encoder"}[row[0]["task"]]
    gain = f"{mean(row, 'figure') - mean(row, 'cosine'):+.4f}"
    name = f"{own}, {row[0]['epochs']} epochs"
    return [name, *means(row, "figure", "cosine"), gain, seeds(row, "figure")]


# By what a run has to have measured: the header, and the cells of a row.
TABLES: dict[str, tuple[list[str], Callable[[Row], list[str]]]] = {
    "peer": (
        ["data", "weights", "figure", "ours", "transformers", "difference", "seeds", "seconds",
         "theirs", "of theirs", "load"],
        beside_peer,
    ),
    "int8": (["int8-static of", "float32", "int8", "loses", "times its texts/s"], int8),
    "ece": (["calibrated", "at 0.5", "own thresholds", "ECE before", "after"], calibrated),
    "cosine": (["ranked by", "MAP", "cosine untrained", "gain", "seeds"], ranked),
}  # fmt: skip


def described(row: Row) -> str:
    one = row[0]
    return (
        f"{one['name']}: {one['train']} training and {one['dev']} dev texts, {one['epochs']} "
        f"epochs, batch {one['batch_size']}, rate {one['learning_rate']:g}, {one['threads']} "
        f"threads{'' if 'peer' in one else '; transformers was not run'}."
    )


def targets(rows: list[Row]) -> Iterator[Target]:
    for row in rows:
        name, first = row[0]["name"], row[0]

        def gain(one: str, other: str, row: Row = row) -> float:
            return mean(row, one) - mean(row, other)

        if "peer" in first:
            less = f"{name}: {first['metric']} less transformers'"
            yield Target(less, gain("figure", "peer"), -MARGIN)
        if "peer" in first and name == "wnut17":
            took = mean(row, "seconds") / mean(row, "peer_seconds")
            yield Target(f"{name}: of transformers' training time", took, TIME, at_most=True)
        if "int8" in first:
            limit = VECTORS_DROP if first.get("task") == "embedding" else INT8_DROP
            yield Target(f"{name}: int8-static loses", mean(row, "int8_drop"), limit, at_most=True)
        if "int8" in first and name == "wnut17":
            yield Target(f"{name}: int8-static's speed", mean(row, "int8_speed"), INT8_SPEED)
        if "ece" in first:
            change = f"{name}: change of the calibration error"
            yield Target(change, gain("calibrated_ece", "ece"), 0.0, at_most=True)
            yield Target(f"{name}: gain by thresholds", gain("calibrated", "figure"), 0.0)
        if "cosine" in first:
            less = f"{name}, {first['task']}: MAP less the cosine's"
            yield Target(less, gain("figure", "cosine"), RANKING_GAIN)
