"""A vector."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np

from fleetbert.tasks.answer import Answers, Tensor, Values

SHOWN = 4  # numbers of a vector, where a person reads it


class VectorAnswer(NamedTuple):
    """The vector, float32 [width], of length 1: the product of two is their cosine."""

    vector: np.ndarray
    exit_layer: int | None = None

    def as_json(self) -> dict[str, object]:
        return {"vector": [round(number, 6) for number in self.vector.tolist()]}


class VectorAnswers(Answers):
    def to_answers(
        self, labels: Sequence[str], outputs: np.ndarray, exit_layers: np.ndarray | None
    ) -> list[VectorAnswer]:
        return [VectorAnswer(vector) for vector in outputs]

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
