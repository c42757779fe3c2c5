"""How answers are measured: what every task on texts has of it."""

from __future__ import annotations

from types import MappingProxyType
from typing import ClassVar, Dict, Mapping, NamedTuple, Sequence

import numpy as np

from fleetbert.core.task_names import Shape
from fleetbert.tasks.calibration import Fitted
from fleetbert.tasks.metrics import Metrics

# What one batch of an evaluation gave, by name; sent between ranks.
Part = Dict[str, np.ndarray]


class Criterion(NamedTuple):
    """What decides which step is the best."""

    metric: str
    lower_is_better: bool

    def is_better(self, metrics: Metrics, former: Metrics) -> bool:
        """`former` may be empty. Of two that are equal the one with the lower loss is better."""
        if not former:
            return True
        new, old = metrics[self.metric], former[self.metric]
        if new == old and "loss" in metrics and "loss" in former:
            return bool(metrics["loss"] < former["loss"])
        return bool(new < old if self.lower_is_better else new > old)


class Evaluator:
    """thresholds: of a bundle's labels, by name; most tasks have none."""

    gate_metric: ClassVar[str]  # what compression may lose little of; higher is better
    # The figures that pages and progress show, in this order, and what they call them.
    figures: ClassVar[Sequence[tuple[str, str]]] = ()
    takes_metrics: ClassVar[bool] = True  # of a user's own, on outputs [texts, outputs]
    calibrates: ClassVar[bool] = False  # `fit` and `confidence` are there
    thresholds: Mapping[str, float] = MappingProxyType({})

    def __init__(self, shape: Shape):
        self.shape = shape

    def per_example(self, outputs: np.ndarray) -> np.ndarray:
        """Outputs of `Labels.texts` [texts, ...] → what `evaluate` compares, [examples, ...]."""
        return outputs

    def evaluate(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Metrics:
        """Metrics with `n`, most with `loss`; truth [examples, ...], as `Labels.targets` gives it;
        outputs float32 [examples, outputs], as `per_example` does, or what `Answers.of_texts` makes
        of them."""
        raise NotImplementedError(f"task {self.shape.name} has no `evaluate`")

    def sums(
        self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]
    ) -> np.ndarray | None:
        """Numbers [texts, any] whose sums over texts `of_sums` makes `gate_metric` of, which is
        faster to draw samples of; None where there are none."""
        return None

    def of_sums(self, sums: np.ndarray) -> float:
        raise NotImplementedError

    def right(self, truth: np.ndarray, outputs: np.ndarray) -> np.ndarray | None:
        """Whether each answer is right, bool [texts], where `gate_metric` is the share of those;
        None where it is another figure."""
        return None

    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        """What a metric of scikit-learn's takes as `y_pred`; here the likeliest label's number."""
        best: np.ndarray = outputs.argmax(axis=1)
        return best

    def evaluate_parts(
        self, parts: Sequence[Part], truth: np.ndarray, labels: Sequence[str], room: np.ndarray
    ) -> Metrics:
        """`evaluate` the outputs of all batches, which come in any order; `texts` of a part says
        which they are. room: for the outputs of all, see `Task.room`."""
        outputs = together(parts, room)
        return {**self.evaluate(truth, outputs, labels), **self.plots(truth, outputs, labels)}

    def plots(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Metrics:
        """What a run's report draws besides; ready for JSON, and small."""
        return {}

    def fit(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Fitted:
        """What makes probabilities of a network's outputs true, on texts it was not trained on."""
        raise NotImplementedError(f"task {self.shape.name} has no probabilities")

    def at_temperature(self, outputs: np.ndarray, temperature: float) -> np.ndarray:
        """Outputs as `evaluate` takes them, of a network whose logits are divided by it."""
        divided: np.ndarray = outputs / np.float32(temperature)
        return divided

    def confidence(
        self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities that were told, float64 [answers], and whether each was right, bool."""
        raise NotImplementedError(f"task {self.shape.name} has no probabilities")

    def criterion(self, wanted: str, metrics: Metrics) -> Criterion:
        """What the best step is told by, where a job wants `trainer.best_metric`."""
        for metric in (wanted, self.gate_metric):
            if metric in metrics:
                return Criterion(metric, metric == "loss")
        return Criterion("loss", True)


def together(parts: Sequence[Part], room: np.ndarray) -> np.ndarray:
    """The outputs of all batches by the numbers of their texts, in a task's `room`."""
    for part in parts:
        room[part["texts"]] = part["logits"]
    return room
