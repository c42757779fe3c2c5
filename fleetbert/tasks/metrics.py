"""Figures of a classifier's answers, by scikit-learn's definitions. NumPy only."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np


def judge(truth: np.ndarray, logits: np.ndarray, labels: Sequence[str]) -> dict[str, Any]:
    """All figures at once: n, accuracy, macro_f1, loss (nats), classes, labels, confusion.

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


def per_class(confusion: np.ndarray, labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Precision, recall and F1 of each label, 0 where nothing was predicted or nothing is there."""
    found = np.diag(confusion)
    support, predicted = confusion.sum(axis=1), confusion.sum(axis=0)
    precision = found / np.maximum(predicted, 1)
    recall = found / np.maximum(support, 1)
    f1 = 2 * found / np.maximum(support + predicted, 1)
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


def judge_clicks(truth: np.ndarray, logits: np.ndarray) -> dict[str, Any]:
    """n, auc and loss (nats) of answers to yes or no; truth 0 or 1 [rows], logits float [rows].

    ValueError where all are 0 or all are 1: there is no AUC.
    """
    return {"n": len(truth), "auc": auc(truth, logits), "loss": log_loss(truth, logits)}


def auc(truth: np.ndarray, scores: np.ndarray) -> float:
    """Area under the ROC curve: the chance that a 1 has a higher score than a 0; equal scores
    count half (Mann and Whitney 1947). ValueError where all are 0 or all are 1."""
    ones = int((truth > 0.5).sum())
    zeros = len(truth) - ones
    if not ones or not zeros:
        raise ValueError("without both a 1 and a 0 there is no AUC")
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2  # mean rank of those with the same score
    return float((ranks[places][truth > 0.5].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def log_loss(truth: np.ndarray, logits: np.ndarray) -> float:
    """Mean of -log p of what is true, in nats, where p is the logistic function of a logit."""
    signed = np.where(truth > 0.5, -1.0, 1.0) * logits.astype(np.float64)
    return float(np.logaddexp(0.0, signed).mean())
