"""Several labels for each text, or none."""

from __future__ import annotations

import json
from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np

from fleetbert.data.labels import in_order
from fleetbert.tasks import metrics
from fleetbert.tasks.calibration import Fitted, fit_temperature, fit_threshold
from fleetbert.tasks.task import Metrics, Task, Tensor, Values

# A text has the labels whose probability is above it, where a bundle has no other for them.
THRESHOLD = 0.5
# Of labels that a report draws, the most frequent, and of points on each curve.
MOST_CURVES, CURVE_POINTS = 12, 60


class LabelsAnswer(NamedTuple):
    """The labels whose probability is above their threshold, the likeliest first; the probability
    of each label (each is 0 to 1 by itself), logits [labels], and the layer after which the text
    left."""

    labels: list[str]
    scores: dict[str, float]
    logits: np.ndarray
    exit_layer: int | None = None

    def as_json(self) -> dict[str, object]:
        rounded = {name: round(score, 6) for name, score in self.scores.items()}
        left = {} if self.exit_layer is None else {"exit_layer": self.exit_layer}
        return {"labels": self.labels, "scores": rounded, **left}


class MultiLabel(Task):
    name = "multi_label_classification"
    head = "classifier"
    loss = f"{__name__}.loss"
    gate_metric = "macro_f1"
    label = "names"
    picks_label = False
    least_labels = 1
    calibrates = True

    def labels_of(self, written: Sequence[str]) -> list[str]:
        return in_order(name for one in written for name in json.loads(one))

    def targets(self, written: Sequence[str], labels: Sequence[str]) -> np.ndarray:
        """bool [written, labels]."""
        places = {label: number for number, label in enumerate(labels)}
        found = np.zeros((len(written), len(labels)), bool)
        for row, one in zip(found, written):
            row[[places[name] for name in json.loads(one) if name in places]] = True
        return found

    def alike(self, truth: np.ndarray) -> str:
        return "all texts have the same labels" if super().alike(truth) else ""

    def counts(self, targets: np.ndarray, labels: Sequence[str]) -> np.ndarray:
        counts: np.ndarray = targets.sum(axis=0, dtype=np.int64)
        return counts

    def describe(self, targets: np.ndarray, labels: Sequence[str]) -> str:
        return f"{super().describe(targets, labels)}; {targets.sum(1).mean():.2f} a text"

    def outputs(self, labels: Sequence[str]) -> int:
        return len(labels)

    def evaluate(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Metrics:
        """Macro and micro F1, the share of texts with all labels right, and the table by label."""
        chosen = metrics.sigmoid(outputs) > self._limits(labels)
        return metrics.multi_label(truth, outputs, chosen, labels)

    def plots(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Metrics:
        """`precision_recall`: of the most frequent labels [recall, precision] by threshold, and
        scikit-learn's average precision."""
        order = np.argsort(-truth.sum(0), kind="stable")[:MOST_CURVES].tolist()
        drawn = {}
        for number in order:
            if truth[:, number].any():
                precision, recall = metrics.precision_recall(truth[:, number], outputs[:, number])
                average = float((np.diff(recall, prepend=0.0) * precision).sum())
                some = np.unique(np.linspace(0, len(recall) - 1, CURVE_POINTS).astype(int))
                points = np.stack([recall[some], precision[some]], 1).round(4)
                drawn[labels[number]] = {"average": average, "points": points.tolist()}
        return {"precision_recall": drawn}

    def doubt(self) -> str:
        return "labels"

    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        """bool [texts, labels]."""
        chosen: np.ndarray = outputs > 0  # logits: of THRESHOLD it is 0
        return chosen

    def fit(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Fitted:
        """A temperature of all, and then the threshold of each label."""
        temperature = fit_temperature(truth, outputs, metrics.sigmoid)
        scores = metrics.sigmoid(outputs / np.float32(temperature))
        found = [fit_threshold(truth[:, n], scores[:, n]) for n in range(len(labels))]
        return Fitted(temperature, dict(zip(labels, found)))

    def confidence(self, truth: np.ndarray, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of each label of each text: its probability, and whether the text has it."""
        return metrics.sigmoid(outputs).ravel(), truth.ravel()

    def to_answers(
        self, labels: Sequence[str], outputs: np.ndarray, exit_layers: np.ndarray | None
    ) -> list[LabelsAnswer]:
        layers = [None] * len(outputs) if exit_layers is None else exit_layers.tolist()
        scores = metrics.sigmoid(outputs)
        return [
            LabelsAnswer(chosen, dict(zip(labels, row.tolist())), logits, layer)
            for chosen, logits, row, layer in zip(
                self._chosen(labels, scores), outputs, scores, layers
            )
        ]

    def in_words(self, told: Mapping[str, Any]) -> str:
        scores = told["scores"]
        if told["labels"]:
            return ", ".join(f"{label} ({scores[label]:.1%})" for label in told["labels"])
        likeliest = max(scores, key=scores.__getitem__)
        return f"no label (the likeliest: {likeliest}, {scores[likeliest]:.1%})"

    def tell(self, labels: Sequence[str], outputs: np.ndarray) -> list[Values]:
        scores = metrics.sigmoid(outputs)
        chosen = [json.dumps(one, ensure_ascii=False) for one in self._chosen(labels, scores)]
        return [chosen, scores.astype(np.float32), outputs]

    def tensors(self, labels: Sequence[str]) -> list[Tensor]:
        return [
            Tensor("labels", "BYTES", (-1,)),
            Tensor("scores", "FP32", (-1, len(labels))),
            Tensor("logits", "FP32", (-1, len(labels))),
            Tensor("exit_layer", "INT32", (-1,)),
        ]

    def _limits(self, labels: Sequence[str]) -> np.ndarray:
        """The labels' thresholds, float64 [labels]."""
        return np.array([self.thresholds.get(label, THRESHOLD) for label in labels])

    def _chosen(self, labels: Sequence[str], scores: np.ndarray) -> list[list[str]]:
        """The labels of each text, the likeliest first; scores [texts, labels]."""
        return [
            [labels[n] for n in np.argsort(-row, kind="stable").tolist() if has[n]]
            for row, has in zip(scores, scores > self._limits(labels))
        ]

    def head_fields(self) -> dict[str, object]:
        return {"problem_type": "multi_label_classification"}


MULTI_LABEL = MultiLabel()
