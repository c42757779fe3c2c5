"""F1 of answers that are several labels each."""

from __future__ import annotations

from typing import Sequence

import numpy as np

from fleetbert.tasks.calibration import Fitted, fit_temperature, fit_threshold
from fleetbert.tasks.evaluator import Evaluator
from fleetbert.tasks.metrics import (
    BLOCK,
    MOST_LABELS,
    Metrics,
    curves_of_labels,
    sigmoid,
    table,
    worst_first,
)
from fleetbert.tasks.multi_label.answer import limits


class SeveralMetrics(Evaluator):
    gate_metric = "macro_f1"
    figures = (
        ("macro_f1", "macro F1"),
        ("micro_f1", "micro F1"),
        ("subset_accuracy", "all labels right"),
    )
    calibrates = True

    def evaluate(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Metrics:
        """Macro and micro F1, the share of texts with all labels right, and the table by label."""
        chosen = sigmoid(outputs) > limits(labels, self.thresholds)
        return multi_label(truth, outputs, chosen, labels)

    def plots(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Metrics:
        """`precision_recall`, see `metrics.curves_of_labels`."""
        return {"precision_recall": curves_of_labels(truth, sigmoid(outputs), labels)}

    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        """bool [texts, labels]."""
        chosen: np.ndarray = outputs > 0  # logits: of THRESHOLD it is 0
        return chosen

    def fit(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Fitted:
        """A temperature of all, and then the threshold of each label."""
        temperature = fit_temperature(truth, outputs, sigmoid)
        scores = sigmoid(outputs / np.float32(temperature))
        fitted = [fit_threshold(truth[:, n], scores[:, n]) for n in range(len(labels))]
        return Fitted(temperature, dict(zip(labels, fitted)))

    def confidence(
        self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of each label of each text: its probability, and whether the text has it."""
        return sigmoid(outputs).ravel(), truth.ravel()


def multi_label(
    truth: np.ndarray, logits: np.ndarray, predicted: np.ndarray, labels: Sequence[str]
) -> Metrics:
    """n, macro_f1, micro_f1, subset_accuracy, loss (nats), classes, labels.

    truth and predicted: bool [texts, labels]; logits: float32 [texts, labels].
    The F1s are scikit-learn's over all labels, with 0 where one neither occurs nor is answered;
    subset_accuracy is the share of texts whose labels are all right, its accuracy_score. loss: the
    mean binary cross entropy. Above MOST_LABELS labels the classes come worst first.
    """
    right, support, answered = ((c).sum(0) for c in (truth & predicted, truth, predicted))
    classes = table(right, support, answered, labels)
    if len(labels) > MOST_LABELS:
        classes = dict(sorted(classes.items(), key=worst_first))
    return {
        "n": len(truth),
        "macro_f1": float(np.mean([scores["f1"] for scores in classes.values()])),
        "micro_f1": float(2 * right.sum() / max(support.sum() + answered.sum(), 1)),
        "subset_accuracy": float((truth == predicted).all(1).mean()),
        "loss": binary_cross_entropy(truth, logits),
        "classes": classes,
        "labels": list(labels),
    }


def binary_cross_entropy(truth: np.ndarray, logits: np.ndarray) -> float:
    """Mean of -log sigmoid of the logits of what is true, and of minus those of what is not; bool
    and float32 [texts, labels]."""
    total, rows = 0.0, max(1, BLOCK // logits.shape[1])
    for start in range(0, len(truth), rows):
        some = logits[start : start + rows].astype(np.float64)
        total += float(np.logaddexp(0, np.where(truth[start : start + rows], -some, some)).sum())
    return total / truth.size
