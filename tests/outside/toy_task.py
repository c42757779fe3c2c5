"""A task from outside the package: how many stars. Labels are numbers, and so is the answer: what
the probabilities of the labels expect."""

from __future__ import annotations

from typing import NamedTuple, Sequence

import numpy as np

from fleetbert import tasks
from fleetbert.tasks import Answers, Evaluator, Metrics, Shape, Task, Tensor
from fleetbert.tasks.metrics import softmax


class StarsAnswer(NamedTuple):
    stars: float
    exit_layer: int | None

    def as_json(self) -> dict[str, object]:
        return {"stars": round(self.stars, 4)}


class StarsMetrics(Evaluator):
    gate_metric = "within_one"

    def evaluate(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Metrics:
        errors = expected(labels, outputs) - np.array(labels, float)[truth]
        within_one = float((np.abs(errors) <= 1).mean())
        return {"n": len(truth), "loss": float((errors**2).mean()), "within_one": within_one}


class StarsAnswers(Answers):
    def to_answers(
        self, labels: Sequence[str], outputs: np.ndarray, exit_layers: np.ndarray | None
    ) -> list[StarsAnswer]:
        layers = [None] * len(outputs) if exit_layers is None else exit_layers.tolist()
        return [StarsAnswer(float(s), n) for s, n in zip(expected(labels, outputs), layers)]

    def tensors(self, labels: Sequence[str], outputs: int) -> list[Tensor]:
        return [Tensor("stars", "FP32", (-1,)), Tensor("exit_layer", "INT32", (-1,))]


def expected(labels: Sequence[str], outputs: np.ndarray) -> np.ndarray:
    return softmax(outputs) @ np.array(labels, float)


tasks.register(Task(Shape("stars"), StarsMetrics, StarsAnswers, loss="outside.toy_loss"))
