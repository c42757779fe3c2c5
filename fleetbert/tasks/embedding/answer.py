"""A vector."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np

from fleetbert.tasks.answer import Answers, Tensor, Values, layer_as_json, layers_of

SHOWN = 4  # numbers of a vector, where a person reads it


class VectorAnswer(NamedTuple):
    """The vector, float32 [width], of length 1: the product of two is their cosine; and the layer
    after which the text left, where it could leave early."""

    vector: np.ndarray
    exit_layer: int | None = None

    def as_json(self) -> dict[str, object]:
        vector = [round(number, 6) for number in self.vector.tolist()]
        return {"vector": vector, **layer_as_json(self.exit_layer)}


class VectorAnswers(Answers):
    doubt = "change"

    def exit_head(self, wanted: str) -> str:
        return "vector"

    def to_answers(
        self, labels: Sequence[str], outputs: np.ndarray, exit_layers: np.ndarray | None
    ) -> list[VectorAnswer]:
        layers = layers_of(exit_layers, len(outputs))
        return [VectorAnswer(vector, layer) for vector, layer in zip(outputs, layers)]

    def in_words(self, answer: Mapping[str, Any]) -> str:
        vector = answer["vector"]
        shown = ", ".join(f"{number:.4f}" for number in vector[:SHOWN])
        return f"[{shown}, ...], {len(vector)} numbers"

    def together_in_words(self, answers: Sequence[Mapping[str, Any]]) -> list[str]:
        """The cosine of each text with the first."""
        vectors = np.array([answer["vector"] for answer in answers])
        cosines = (vectors[1:] @ vectors[0]).tolist() if len(answers) > 1 else []
        return [f"similarity of 1 and {n}: {cosine:.4f}" for n, cosine in enumerate(cosines, 2)]

    def tell(self, labels: Sequence[str], outputs: np.ndarray) -> list[Values]:
        return [outputs]

    def tensors(self, labels: Sequence[str], outputs: int) -> list[Tensor]:
        return [Tensor("embedding", "FP32", (-1, outputs)), Tensor("exit_layer", "INT32", (-1,))]
