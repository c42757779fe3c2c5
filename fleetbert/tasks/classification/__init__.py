"""A label for each text, or for each pair of texts."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np

from fleetbert.core.errors import UserError
from fleetbert.tasks import metrics
from fleetbert.tasks.calibration import Fitted, fit_temperature
from fleetbert.tasks.task import Metrics, Task, Tensor, Values


class LabelAnswer(NamedTuple):
    """The likeliest label, the probability of each label (they sum to 1), logits [labels], and the
    layer after which the text left, where it could leave early."""

    label: str
    scores: dict[str, float]
    logits: np.ndarray
    exit_layer: int | None = None

    def as_json(self) -> dict[str, object]:
        rounded = {name: round(score, 6) for name, score in self.scores.items()}
        layer = {} if self.exit_layer is None else {"exit_layer": self.exit_layer}
        return {"label": self.label, "scores": rounded, **layer}


class Classification(Task):
    head = "classifier"
    loss = f"{__name__}.loss"
    gate_metric = "accuracy"
    calibrates = True

    def __init__(self, name: str, pair: bool):
        self.name, self.pair = name, pair

    def check_labels(self, labels: Sequence[str]) -> None:
        if len(labels) < 2:
            raise UserError(
                f"data.train: has the label {labels[0]!r} only; at least two are needed"
            )

    def outputs(self, labels: Sequence[str]) -> int:
        return len(labels)

    def evaluate(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Metrics:
        """Accuracy, macro F1, mean loss, the table by class and the confusion matrix."""
        return metrics.classification(truth, outputs, labels)

    def right(self, truth: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        right: np.ndarray = outputs.argmax(axis=1) == truth
        return right

    def fit(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Fitted:
        """A temperature: the answers stay, their probabilities change."""
        is_true = truth[:, None] == np.arange(len(labels))
        return Fitted(fit_temperature(is_true, outputs, metrics.softmax), {})

    def confidence(self, truth: np.ndarray, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of the likeliest label of each text."""
        return metrics.softmax(outputs).max(axis=1), self.right(truth, outputs)

    def to_answers(
        self, labels: Sequence[str], outputs: np.ndarray, exit_layers: np.ndarray | None
    ) -> list[LabelAnswer]:
        layers = [None] * len(outputs) if exit_layers is None else exit_layers.tolist()
        return [
            LabelAnswer(labels[int(row.argmax())], dict(zip(labels, row.tolist())), logits, layer)
            for logits, row, layer in zip(outputs, metrics.softmax(outputs), layers)
        ]

    def in_words(self, told: Mapping[str, Any]) -> str:
        return f"{told['label']} ({told['scores'][told['label']]:.1%})"

    def tell(self, labels: Sequence[str], outputs: np.ndarray) -> list[Values]:
        best = [labels[number] for number in outputs.argmax(axis=1).tolist()]
        return [best, metrics.softmax(outputs).astype(np.float32), outputs]

    def tensors(self, labels: Sequence[str]) -> list[Tensor]:
        return [
            Tensor("label", "BYTES", (-1,)),
            Tensor("scores", "FP32", (-1, len(labels))),
            Tensor("logits", "FP32", (-1, len(labels))),
            Tensor("exit_layer", "INT32", (-1,)),
        ]


CLASSIFICATION = Classification("classification", pair=False)
PAIR_CLASSIFICATION = Classification("pair_classification", pair=True)
