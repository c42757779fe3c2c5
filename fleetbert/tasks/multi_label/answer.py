"""The labels above their thresholds."""

from __future__ import annotations

import json
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
from fleetbert.tasks.metrics import sigmoid

# A text has the labels whose probability is above it, where a bundle has no other for them.
THRESHOLD = 0.5


class LabelsAnswer(NamedTuple):
    """The labels whose probability is above their threshold, the likeliest first; the probability
    of each label (each is 0 to 1 by itself), logits [labels], and the layer after which the text
    left."""

    labels: list[Label]
    scores: dict[Label, float]
    logits: np.ndarray
    exit_layer: int | None = None

    def as_json(self) -> dict[str, object]:
        scores = scores_as_json(self.scores)
        return {"labels": self.labels, "scores": scores, **layer_as_json(self.exit_layer)}


class LabelsAnswers(Answers):
    doubt = "labels"

    def to_answers(
        self, labels: Sequence[Label], outputs: np.ndarray, exit_layers: np.ndarray | None
    ) -> list[LabelsAnswer]:
        layers = layers_of(exit_layers, len(outputs))
        scores = sigmoid(outputs)
        return [
            LabelsAnswer(chosen, dict(zip(labels, row.tolist())), logits, layer)
            for chosen, logits, row, layer in zip(
                self._chosen(labels, scores), outputs, scores, layers
            )
        ]

    def in_words(self, answer: Mapping[str, Any]) -> str:
        scores = answer["scores"]
        if answer["labels"]:
            return ", ".join(f"{label} ({scores[str(label)]:.1%})" for label in answer["labels"])
        likeliest = max(scores, key=scores.__getitem__)
        return f"no label (the likeliest: {likeliest}, {scores[likeliest]:.1%})"

    def scores(self, outputs: np.ndarray) -> np.ndarray:
        return sigmoid(outputs)

    def tell(self, labels: Sequence[Label], outputs: np.ndarray) -> list[Values]:
        scores = sigmoid(outputs)
        chosen = [json.dumps(names, ensure_ascii=False) for names in self._chosen(labels, scores)]
        return [chosen, scores.astype(np.float32), outputs]

    def tensors(self, labels: Sequence[str], outputs: int) -> list[Tensor]:
        return [
            Tensor("labels", "BYTES", (-1,)),
            Tensor("scores", "FP32", (-1, len(labels))),
            Tensor("logits", "FP32", (-1, len(labels))),
            Tensor("exit_layer", "INT32", (-1,)),
        ]

    def _chosen(self, labels: Sequence[Label], scores: np.ndarray) -> list[list[Label]]:
        """The labels of each text, the likeliest first; scores [texts, labels]."""
        return [
            [labels[n] for n in np.argsort(-row, kind="stable").tolist() if has[n]]
            for row, has in zip(scores, scores > limits(labels, self.thresholds))
        ]


def limits(labels: Sequence[Label], thresholds: Mapping[str, float]) -> np.ndarray:
    """The labels' thresholds, float64 [labels]."""
    return np.array([thresholds.get(str(label), THRESHOLD) for label in labels])
