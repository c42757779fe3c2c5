"""A number for each text, or for each pair of texts."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np

from fleetbert.tasks import metrics
from fleetbert.tasks.task import Metrics, Task, Tensor, Values

MOST_POINTS = 1000


class NumberAnswer(NamedTuple):
    """The number, and the layer after which the text left, where it could leave early."""

    value: float
    exit_layer: int | None = None

    def as_json(self) -> dict[str, object]:
        left = {} if self.exit_layer is None else {"exit_layer": self.exit_layer}
        return {"value": round(self.value, 6), **left}


class OfNumbers(Task):
    """What learns from numbers: no labels."""

    label = "number"
    picks_label = False
    least_labels = 0

    def labels_of(self, written: Sequence[str]) -> list[str]:
        return []

    def targets(self, written: Sequence[str], labels: Sequence[str]) -> np.ndarray:
        """float32 [written]."""
        return np.array([float(one) for one in written], np.float32)

    def alike(self, truth: np.ndarray) -> str:
        return "all texts have the same number" if super().alike(truth) else ""

    def describe(self, targets: np.ndarray, labels: Sequence[str]) -> str | None:
        low, high, mean = (float(of(targets)) for of in (np.min, np.max, np.mean))
        return f"numbers from {low:g} to {high:g}, {mean:.4g} on average"

    def doubts(self, targets: np.ndarray, labels: Sequence[str]) -> list[str]:
        if len(targets) < 2 or targets.min() < targets.max():
            return []
        return [f"all texts have the number {float(targets[0]):g}: nothing can be learned"]

    def plots(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Metrics:
        """`scatter`: [truth, answer] of MOST_POINTS texts at most, drawn by chance."""
        some = np.random.default_rng(0).permutation(len(truth))[:MOST_POINTS]
        points = np.stack([truth[some], outputs[some, 0]], 1).astype(np.float64)
        return {"scatter": points.round(4).tolist()}


class Regression(OfNumbers):
    head = "classifier"
    loss = f"{__name__}.loss"
    gate_metric = "spearman"
    tells = "a number"

    def __init__(self, name: str, pair: bool):
        self.name, self.pair = name, pair

    def outputs(self, labels: Sequence[str]) -> int:
        return 1

    def evaluate(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Metrics:
        """Spearman's and Pearson's correlation and the mean squared error."""
        return metrics.regression(truth, outputs[:, 0])

    def doubt(self) -> str:
        return "change"

    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        return outputs[:, 0]

    def to_answers(
        self, labels: Sequence[str], outputs: np.ndarray, exit_layers: np.ndarray | None
    ) -> list[NumberAnswer]:
        layers = [None] * len(outputs) if exit_layers is None else exit_layers.tolist()
        return [NumberAnswer(value, layer) for value, layer in zip(outputs[:, 0].tolist(), layers)]

    def in_words(self, told: Mapping[str, Any]) -> str:
        return f"{told['value']:.4f}"

    def tell(self, labels: Sequence[str], outputs: np.ndarray) -> list[Values]:
        return [outputs[:, 0]]

    def tensors(self, labels: Sequence[str]) -> list[Tensor]:
        return [Tensor("values", "FP32", (-1,)), Tensor("exit_layer", "INT32", (-1,))]

    def head_fields(self) -> dict[str, object]:
        return {"problem_type": "regression", "id2label": {"0": "LABEL_0"}}


REGRESSION = Regression("regression", pair=False)
PAIR_REGRESSION = Regression("pair_regression", pair=True)
