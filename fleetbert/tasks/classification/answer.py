"""The likeliest label."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np

from fleetbert.tasks.answer import (
    Answers,
    Label,
    Tensor,
    Values,
    layer_as_json,
    layers_of,
    scores_as_json,
)
from fleetbert.tasks.metrics import softmax


class LabelAnswer(NamedTuple):
    """The likeliest label, the probability of each label (they sum to 1), logits [labels], and the
    layer after which the text left, where it could leave early."""

    label: Label
    scores: dict[Label, float]
    logits: np.ndarray
    exit_layer: int | None = None

    def as_json(self) -> dict[str, object]:
        scores = scores_as_json(self.scores)
        return {"label": self.label, "scores": scores, **layer_as_json(self.exit_layer)}


class LabelAnswers(Answers):
    def to_answers(
        self, labels: Sequence[Label], outputs: np.ndarray, exit_layers: np.ndarray | None
    ) -> list[LabelAnswer]:
        layers = layers_of(exit_layers, len(outputs))
        return [
            LabelAnswer(labels[int(row.argmax())], dict(zip(labels, row.tolist())), logits, layer)
            for logits, row, layer in zip(outputs, softmax(outputs), layers)
        ]

    def scores(self, outputs: np.ndarray) -> np.ndarray:
        return softmax(outputs)

    def in_words(self, answer: Mapping[str, Any]) -> str:
        return f"{answer['label']} ({answer['scores'][str(answer['label'])]:.1%})"

    def tell(self, labels: Sequence[Label], outputs: np.ndarray) -> list[Values]:
        best = [str(labels[number]) for number in outputs.argmax(axis=1).tolist()]
        return [best, softmax(outputs).astype(np.float32), outputs]

    def tensors(self, labels: Sequence[str], outputs: int) -> list[Tensor]:
        return [
            Tensor("label", "BYTES", (-1,)),
            Tensor("scores", "FP32", (-1, len(labels))),
            Tensor("logits", "FP32", (-1, len(labels))),
            Tensor("exit_layer", "INT32", (-1,)),
        ]
