"""What metrics of several tasks are made of. NumPy only."""

from __future__ import annotations

from typing import Any, Dict, Sequence

import numpy as np

# Ready for JSON: numbers by name, and tables of them.
Metrics = Dict[str, Any]

# A confusion matrix has no more rows: it grows with the square of the labels. Tables by label have
# the worst first where there are more.
MOST_LABELS = 50
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
