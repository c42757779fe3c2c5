"""How far in front documents that answer their query come."""

from __future__ import annotations

from typing import NamedTuple, Sequence

import numpy as np

from fleetbert.tasks.metrics import Metrics
from fleetbert.tasks.regression.metrics import NumberMetrics

PLACES = 10  # of the first relevant document, that the report counts one by one
BINS = 20


class RankingMetrics(NumberMetrics):
    gate_metric = "map"
    figures = (("map", "mean average precision"), ("mrr", "MRR"), ("mrr_10", "MRR@10"))
    takes_metrics = False

    def evaluate(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Metrics:
        """Mean average precision and mean reciprocal rank, over the queries."""
        return ranking(ranked_by(truth, outputs), len(truth))

    def sums(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> np.ndarray:
        """float64 [queries, 2]: average precision, and 1. Documents of a query stay together."""
        precision = ranked_by(truth, outputs).precision
        return np.stack([precision, np.ones(len(precision))], 1)

    def of_sums(self, sums: np.ndarray) -> float:
        return float(sums[0] / max(sums[1], 1))

    def plots(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Metrics:
        """`first_places`: queries whose first relevant document comes first, second, ..., and after
        PLACES; `answers_by_relevance`: bounds of BINS, and the documents in each by relevance."""
        places = np.minimum(ranked_by(truth, outputs).place, PLACES + 1) - 1
        relevant, values = truth[:, 0] > 0, outputs[:, 0].astype(np.float64)
        bounds = np.histogram_bin_edges(values, BINS)
        counts = [np.histogram(values[which], bounds)[0] for which in (relevant, ~relevant)]
        return {
            "first_places": np.bincount(places, minlength=PLACES + 1).tolist(),
            "answers_by_relevance": {
                "bounds": bounds.round(4).tolist(),
                "relevant": counts[0].tolist(),
                "others": counts[1].tolist(),
            },
        }


def ranked_by(truth: np.ndarray, outputs: np.ndarray) -> Ranked:
    """truth [pairs, 2] as `Relevance.targets` gives it; outputs float32 [pairs, 1]."""
    return ranked(truth[:, 0] > 0, truth[:, 1], outputs[:, 0])


class Ranked(NamedTuple):
    """Of each query with a relevant document: its average precision, float64 [queries], and the
    place from 1 of the first relevant one, int64 [queries]."""

    precision: np.ndarray
    place: np.ndarray


def ranked(relevant: np.ndarray, queries: np.ndarray, scores: np.ndarray) -> Ranked:
    """Documents in the order of their scores, of each query by themselves; relevant bool [pairs],
    queries [pairs], the number of each one's query, scores float32 [pairs].

    Average precision is scikit-learn's average_precision_score: documents with one score come in
    together. For the place of the first relevant one they go before it.
    """
    order = np.lexsort((relevant, -scores, queries))
    relevant, queries, scores = relevant[order], queries[order], scores[order]
    begins = np.diff(queries, prepend=np.nan) != 0
    number = np.cumsum(begins) - 1  # of each pair's query
    start = np.flatnonzero(begins)
    right = np.cumsum(relevant)
    before = right[start] - relevant[start]  # relevant ones of all queries before
    last_of_score = np.append((np.diff(scores) != 0) | begins[1:], True)
    ends = np.flatnonzero(last_of_score)
    end = ends[np.searchsorted(ends, np.arange(len(order)))]
    precision = (right[end] - before[number]) / (end - start[number] + 1)
    with_answer = number[relevant]
    kept, first, counts = np.unique(with_answer, return_index=True, return_counts=True)
    sums = np.bincount(with_answer, precision[relevant], len(start))[kept]
    places = np.flatnonzero(relevant)[first] - start[kept] + 1
    return Ranked(sums / counts, places)


def ranking(ranked: Ranked, pairs: int) -> Metrics:
    """n, queries, map, mrr, mrr_10; queries without a relevant document are left out, as trec_eval
    does."""
    reciprocal = 1 / ranked.place
    return {
        "n": pairs,
        "queries": len(ranked.place),
        "map": float(ranked.precision.mean()),
        "mrr": float(reciprocal.mean()),
        "mrr_10": float(np.where(ranked.place <= 10, reciprocal, 0).mean()),
    }
