"""What metrics of several tasks are made of. NumPy only."""

from __future__ import annotations

from typing import Any, Dict, Sequence

import numpy as np

# Ready for JSON: numbers by name, and tables of them.
Metrics = Dict[str, Any]

# A confusion matrix has no more rows: it grows with the square of the labels. Tables by label have
# the worst first where there are more.
MOST_LABELS = 50
# Labels whose curves are drawn, the most frequent; points on a curve; thresholds of counts.
MOST_CURVES, CURVE_POINTS, THRESHOLDS = 12, 60, 101
# Logits in float64 at a time, 32 MB.
BLOCK = 1 << 22


def table(
    right: np.ndarray, support: np.ndarray, answered: np.ndarray, labels: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Precision, recall and F1 of each label, 0 where nothing was predicted or nothing is there.
    Counts int64 [labels]: of those that are right, that are there, and that were predicted."""
    precision = right / np.maximum(answered, 1)
    recall = right / np.maximum(support, 1)
    f1 = 2 * right / np.maximum(support + answered, 1)
    return {
        label: {
            "precision": float(precision[number]),
            "recall": float(recall[number]),
            "f1": float(f1[number]),
            "support": int(support[number]),
        }
        for number, label in enumerate(labels)
    }


def worst_first(item: tuple[str, dict[str, float]]) -> tuple[bool, float, float]:
    """Lowest F1 first, of equal ones the label with most texts; labels without texts come last."""
    scores = item[1]
    return scores["support"] == 0, scores["f1"], -scores["support"]


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Probabilities float64 [texts, labels], each by itself."""
    return 0.5 * (1 + np.tanh(0.5 * logits.astype(np.float64)))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities float64 [texts, labels]."""
    exponentials = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def cross_entropy(truth: np.ndarray, logits: np.ndarray) -> float:
    """Mean of -log softmax(logits)[truth] in nats; truth int64 [texts], logits [texts, labels]."""
    total, rows = 0.0, max(1, BLOCK // logits.shape[1])
    for start in range(0, len(truth), rows):
        some = slice(start, start + rows)
        shifted = logits[some].astype(np.float64) - logits[some].max(axis=1, keepdims=True)
        chosen = shifted[np.arange(len(shifted)), truth[some]]
        np.exp(shifted, out=shifted)
        total += float((np.log(shifted.sum(axis=1)) - chosen).sum())
    return total / len(truth)


def curves_of_labels(
    truth: np.ndarray, probabilities: np.ndarray, labels: Sequence[str]
) -> dict[str, Metrics]:
    """Of the most frequent labels: `average`, scikit-learn's average precision; `points`, [recall,
    precision] by falling threshold; `by_threshold`, [right, wrong] answers at evenly spaced
    thresholds from 0 to 1. truth bool [texts, labels]; probabilities float [texts, labels]."""
    drawn: dict[str, Metrics] = {}
    for number in np.argsort(-truth.sum(0), kind="stable")[:MOST_CURVES].tolist():
        is_true, scores = truth[:, number], probabilities[:, number]
        if not is_true.any():
            continue
        precision, recall = precision_recall(is_true, scores)
        some = np.unique(np.linspace(0, len(recall) - 1, CURVE_POINTS).astype(int))
        thresholds = np.linspace(0, 1, THRESHOLDS)
        counts = [
            chosen.sum() - np.searchsorted(np.sort(scores[chosen]), thresholds)
            for chosen in (is_true, ~is_true)
        ]
        drawn[labels[number]] = {
            "average": float((np.diff(recall, prepend=0.0) * precision).sum()),
            "points": np.stack([recall[some], precision[some]], 1).round(4).tolist(),
            "by_threshold": np.stack(counts, 1).tolist(),
        }
    return drawn


def precision_recall(truth: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Precision and recall, float64 [thresholds], at each score that occurs, from the highest down:
    scikit-learn's precision_recall_curve, without its last point and the other way round. truth
    bool [texts], true somewhere; scores float [texts]."""
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)
    right = np.cumsum(truth[order])[last]
    return right / (last + 1), right / right[-1]
