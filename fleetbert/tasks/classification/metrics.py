"""Accuracy and F1 of answers that are one label each."""

from __future__ import annotations

from typing import Sequence

import numpy as np

from fleetbert.tasks.calibration import Fitted, fit_temperature
from fleetbert.tasks.evaluator import Evaluator
from fleetbert.tasks.metrics import (
    MOST_LABELS,
    Metrics,
    cross_entropy,
    curves_of_labels,
    softmax,
    table,
    worst_first,
)

# Pairs of labels that are listed instead, the most frequent first.
MOST_CONFUSIONS = 1000


class ClassMetrics(Evaluator):
    gate_metric = "accuracy"
    figures = (("accuracy", "accuracy"), ("macro_f1", "macro F1"))
    calibrates = True

    def evaluate(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Metrics:
        """Accuracy, macro F1, mean loss, the table by class and the confusion matrix."""
        return classification(truth, outputs, labels)

    def plots(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Metrics:
        """`precision_recall` of each label, up to MOST_LABELS, see `metrics.curves_of_labels`."""
        if len(labels) > MOST_LABELS:
            return {}
        is_true = truth[:, None] == np.arange(len(labels))
        return {"precision_recall": curves_of_labels(is_true, softmax(outputs), labels)}

    def right(self, truth: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        right: np.ndarray = outputs.argmax(axis=1) == truth
        return right

    def fit(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Fitted:
        """A temperature: the answers stay, their probabilities change."""
        is_true = truth[:, None] == np.arange(len(labels))
        return Fitted(fit_temperature(is_true, outputs, softmax), {})

    def confidence(
        self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of the likeliest label of each text."""
        return softmax(outputs).max(axis=1), self.right(truth, outputs)


def classification(truth: np.ndarray, logits: np.ndarray, labels: Sequence[str]) -> Metrics:
    """n, accuracy, macro_f1, loss (nats), classes, labels, confusion.

    truth: int64 [texts]; logits: float32 [texts, labels].
    macro_f1 is the mean F1 over the labels that occur in truth or answers, of which there are
    macro_f1_classes: scikit-learn's f1_score(truth, answers, average="macro"). macro_f1_all is
    that over all labels, where one that does not occur counts 0.
    Above MOST_LABELS labels the classes come worst first, and instead of `confusion` there are
    `confusions`: [true label, answer, texts] of the most frequent mistakes, MOST_CONFUSIONS at
    most, and `confused_pairs`, how many there are. No matrix of the labels is made.
    """
    predicted = logits.argmax(axis=1)
    right, support, answered = (
        np.bincount(numbers, minlength=len(labels))
        for numbers in (truth[truth == predicted], truth, predicted)
    )
    classes = table(right, support, answered, labels)
    f1 = np.array([scores["f1"] for scores in classes.values()])
    occurs = np.zeros(len(labels), bool)
    occurs[truth] = occurs[predicted] = True
    measures: Metrics = {
        "n": len(truth),
        "accuracy": float((truth == predicted).mean()),
        "macro_f1": float(f1[occurs].mean()),
        "macro_f1_classes": int(occurs.sum()),
        "macro_f1_all": float(f1.mean()),
        "loss": cross_entropy(truth, logits),
        "classes": classes,
        "labels": list(labels),
    }
    if len(labels) <= MOST_LABELS:
        measures["confusion"] = count_confusion(truth, predicted, len(labels)).tolist()
        return measures
    pairs = confused(truth, predicted, len(labels))
    measures["classes"] = dict(sorted(classes.items(), key=worst_first))
    measures["confusions"] = [
        [labels[true], labels[answer], texts] for true, answer, texts in pairs[:MOST_CONFUSIONS]
    ]
    measures["confused_pairs"] = len(pairs)
    return measures


def count_confusion(truth: np.ndarray, predicted: np.ndarray, n_labels: int) -> np.ndarray:
    """int64 [labels, labels]: how many texts of each true label (row) got each label (column)."""
    flat = np.bincount(truth * n_labels + predicted, minlength=n_labels * n_labels)
    return flat.reshape(n_labels, n_labels)


def confused(truth: np.ndarray, predicted: np.ndarray, n_labels: int) -> list[tuple[int, int, int]]:
    """(true label, answer, texts) of each mistake that occurs, the most frequent first."""
    wrong = truth != predicted
    pairs, counts = np.unique(truth[wrong] * n_labels + predicted[wrong], return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return [
        (*divmod(pair, n_labels), count)
        for pair, count in zip(pairs[order].tolist(), counts[order].tolist())
    ]
