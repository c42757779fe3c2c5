"""Metrics of a classifier's answers, by scikit-learn's definitions. NumPy only."""

from __future__ import annotations

from typing import Any, Dict, Sequence

import numpy as np

# Ready for JSON: numbers by name, and tables of them.
Metrics = Dict[str, Any]


def classification(truth: np.ndarray, logits: np.ndarray, labels: Sequence[str]) -> Metrics:
    """n, accuracy, macro_f1, loss (nats), classes, labels, confusion.

    truth: int64 [texts]; logits: float32 [texts, labels].
    """
    confusion = count_confusion(truth, logits.argmax(axis=1), len(labels))
    classes = per_class(confusion, labels)
    return {
        "n": len(truth),
        "accuracy": float(np.trace(confusion) / len(truth)),
        "macro_f1": float(np.mean([scores["f1"] for scores in classes.values()])),
        "loss": cross_entropy(truth, logits),
        "classes": classes,
        "labels": list(labels),
        "confusion": confusion.tolist(),
    }


def count_confusion(truth: np.ndarray, predicted: np.ndarray, n_labels: int) -> np.ndarray:
    """int64 [labels, labels]: how many texts of each true label (row) got each label (column)."""
    flat = np.bincount(truth * n_labels + predicted, minlength=n_labels * n_labels)
    return flat.reshape(n_labels, n_labels)


def per_class(confusion: np.ndarray, labels: Sequence[str]) -> dict[str, dict[str, float]]:
    """Precision, recall and F1 of each label, 0 where nothing was predicted or nothing is there."""
    right = np.diag(confusion)
    support, predicted = confusion.sum(axis=1), confusion.sum(axis=0)
    precision = right / np.maximum(predicted, 1)
    recall = right / np.maximum(support, 1)
    f1 = 2 * right / np.maximum(support + predicted, 1)
    return {
        label: {
            "precision": float(precision[number]),
            "recall": float(recall[number]),
            "f1": float(f1[number]),
            "support": int(support[number]),
        }
        for number, label in enumerate(labels)
    }


def cross_entropy(truth: np.ndarray, logits: np.ndarray) -> float:
    """Mean of -log softmax(logits)[truth] in nats; truth int64 [texts], logits [texts, labels]."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    log_sums = np.log(np.exp(shifted).sum(axis=1))
    return float((log_sums - shifted[np.arange(len(truth)), truth]).mean())


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities float64 [texts, labels]."""
    exponentials = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)
