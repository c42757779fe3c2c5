"""A number."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np

from fleetbert.tasks.answer import Answers, Tensor, Values, layer_as_json, layers_of


class NumberAnswer(NamedTuple):
    """The number, and the layer after which the text left, where it could leave early."""

    value: float
    exit_layer: int | None = None

    def as_json(self) -> dict[str, object]:
        return {"value": round(self.value, 6), **layer_as_json(self.exit_layer)}


class NumberAnswers(Answers):
    doubt = "change"

    def to_answers(
        self, labels: Sequence[str], outputs: np.ndarray, exit_layers: np.ndarray | None
    ) -> list[NumberAnswer]:
        layers = layers_of(exit_layers, len(outputs))
        return [NumberAnswer(value, layer) for value, layer in zip(outputs[:, 0].tolist(), layers)]

    def in_words(self, answer: Mapping[str, Any]) -> str:
        return f"{answer['value']:.4f}"

    def tell(self, labels: Sequence[str], outputs: np.ndarray) -> list[Values]:
        return [outputs[:, 0]]

    def tensors(self, labels: Sequence[str], outputs: int) -> list[Tensor]:
        return [Tensor("values", "FP32", (-1,)), Tensor("exit_layer", "INT32", (-1,))]
