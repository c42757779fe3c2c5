"""Correlations and the squared error of answers that are a number each."""

from __future__ import annotations

from typing import Sequence

import numpy as np

from fleetbert.tasks.evaluator import Evaluator
from fleetbert.tasks.metrics import Metrics

MOST_POINTS = 1000


class NumberMetrics(Evaluator):
    """Spearman's and Pearson's correlation and the mean squared error."""

    gate_metric = "spearman"
    figures = (("spearman", "Spearman"), ("pearson", "Pearson"), ("mse", "squared error"))

    def evaluate(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Metrics:
        """Spearman's and Pearson's correlation and the mean squared error."""
        return regression(truth, outputs[:, 0])

    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        return outputs[:, 0]

    def plots(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Metrics:
        """`scatter`: [truth, answer] of MOST_POINTS texts at most, drawn by chance."""
        some = np.random.default_rng(0).permutation(len(truth))[:MOST_POINTS]
        points = np.stack([truth[some], outputs[some, 0]], 1).astype(np.float64)
        return {"scatter": points.round(4).tolist()}


def regression(truth: np.ndarray, values: np.ndarray) -> Metrics:
    """n, spearman, pearson, mse and loss (the same); truth and values float32 [texts].

    The correlations are SciPy's spearmanr and pearsonr; where all numbers of one side are equal,
    where these give NaN, they are 0.
    """
    truth, values = truth.astype(np.float64), values.astype(np.float64)
    mse = float(((truth - values) ** 2).mean())
    return {
        "n": len(truth),
        "spearman": pearson(ranks(truth), ranks(values)),
        "pearson": pearson(truth, values),
        "mse": mse,
        "loss": mse,
    }


def ranks(values: np.ndarray) -> np.ndarray:
    """float64 [n] from 1, equal ones with the mean of their ranks."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    means: np.ndarray = ends - (counts - 1) / 2
    return means[places.reshape(-1)]


def pearson(first: np.ndarray, other: np.ndarray) -> float:
    """Pearson's correlation of float64 [n] each; 0 where one does not vary."""
    if not len(first) or first.min() == first.max() or other.min() == other.max():
        return 0.0
    centred = [side - side.mean() for side in (first, other)]
    first, other = (side / np.abs(side).max() for side in centred)  # squares stay in range
    return float((first @ other) / np.sqrt((first @ first) * (other @ other)))
