"""The probability of a click."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np

from fleetbert.tasks.answer import Answers, Tensor, Values
from fleetbert.tasks.metrics import sigmoid


class ClickAnswer(NamedTuple):
    """The probability of a click."""

    probability: float
    exit_layer: None = None

    def as_json(self) -> dict[str, object]:
        return {"probability": round(self.probability, 6)}


class ClickAnswers(Answers):
    def to_answers(
        self, labels: Sequence[str], outputs: np.ndarray, exit_layers: np.ndarray | None
    ) -> list[ClickAnswer]:
        return [ClickAnswer(value) for value in self.scores(outputs)[:, 0].tolist()]

    def scores(self, outputs: np.ndarray) -> np.ndarray:
        return sigmoid(outputs)

    def in_words(self, answer: Mapping[str, Any]) -> str:
        return f"{answer['probability']:.2%}"

    def tell(self, labels: Sequence[str], outputs: np.ndarray) -> list[Values]:
        return [self.scores(outputs)[:, 0].astype(np.float32)]

    def tensors(self, labels: Sequence[str], outputs: int) -> list[Tensor]:
        return [Tensor("probability", "FP32", (-1,))]
