"""What a kind of task minimizes. It loads Paddle, as the module `loss` of each task does: training
imports these, nothing that serves does.

Arrays hold what the task's collector gives (`fleetbert.tasks.collect`): `weight` float32
[examples], `labels`, and `inputs` of the network.
"""

from __future__ import annotations

import importlib

import numpy as np

import fleetbert.compat.prepared  # noqa: F401  isort: skip
import paddle
import paddle.nn.functional as F
from paddle import nn

from fleetbert.tasks.collect import Arrays
from fleetbert.tasks.evaluator import Part
from fleetbert.tasks.task import Task

# What a loss of classes takes of the section `loss`.
CLASSES = frozenset({"label_smoothing", "r_drop", "class_weights"})


class Loss:
    """The network is the one of the task's head. `has_classes`: it gives logits of the labels, of
    which one holds for each of `weight`. `pooled`: the loss needs the pooler. `passes`: 2 where
    `again` comes after the gradients of `loss`."""

    has_classes = False
    pooled = True
    passes = 1

    @property
    def regularizers(self) -> frozenset[str]:
        """The keys of `loss` that the task takes, beside `adversarial`: label_smoothing needs
        `of_uniform`, r_drop `divergence`, positive_weights `with_positive_weights`, class_weights
        arrays with a label for each of `weight`."""
        return CLASSES if self.has_classes else frozenset()

    def of_uniform(self, outputs: paddle.Tensor, arrays: Arrays) -> paddle.Tensor:
        """The same where each label is as likely as the others."""
        return (-F.log_softmax(outputs).mean(-1) * arrays["weight"]).sum()

    def divergence(
        self, first: paddle.Tensor, second: paddle.Tensor, arrays: Arrays
    ) -> paddle.Tensor:
        """How far apart the outputs of two forward passes are: a sum as `loss` is."""
        return (symmetric_divergence(first, second) * arrays["weight"]).sum()

    def prepare(self, network: nn.Layer) -> None:
        """Change a network (`task_heads.Headed`) before its weights are given to an optimizer."""
        if not self.pooled:  # data parallel must not wait for its gradients
            for weight in network.network.bert.pooler.parameters():
                weight.stop_gradient = True

    def with_positive_weights(self, weights: np.ndarray) -> Loss:
        """The loss in which a text that has a label counts so much, float32 [labels]."""
        raise NotImplementedError

    def loss(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        """A float32 scalar: the sum over the examples, each with its `weight`."""
        return self.of_outputs(model(**arrays["inputs"]).astype("float32"), arrays)

    def of_outputs(self, outputs: paddle.Tensor, arrays: Arrays) -> paddle.Tensor:
        """`loss` of a network's float32 outputs. A task that only trains may have `loss` alone."""
        raise NotImplementedError

    def of_teacher(
        self, outputs: paddle.Tensor, known: paddle.Tensor, arrays: Arrays, temperature: float
    ) -> paddle.Tensor:
        """The same against a teacher's outputs `known`, float32, instead of labels; the temperature
        divides logits."""
        raise NotImplementedError

    def again(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        """As `loss`, of the same arrays, when its gradients are there; theirs are added."""
        raise NotImplementedError

    def predict(self, network: nn.Layer, arrays: Arrays) -> Part:
        """What an evaluation needs of one batch: the outputs of its texts."""
        logits = network(**arrays["inputs"]).astype("float32").numpy()
        return {"texts": arrays["texts"], "logits": logits}


def symmetric_divergence(first: paddle.Tensor, second: paddle.Tensor) -> paddle.Tensor:
    """The mean of both Kullback-Leibler divergences of two logits [..., classes], float32 [...]:
    R-Drop (Liang et al. 2021, equation 3)."""
    p, q = F.log_softmax(first), F.log_softmax(second)
    return ((p.exp() - q.exp()) * (p - q)).sum(-1) / 2


def symmetric_divergence_of_sigmoids(first: paddle.Tensor, second: paddle.Tensor) -> paddle.Tensor:
    """The same of each logit's probability and what is left of it, float32 [...]."""
    return (F.sigmoid(first) - F.sigmoid(second)) * (first - second) / 2


def of(task: Task) -> Loss:
    """The loss of a task, which names its module, or has it."""
    if isinstance(task.loss, str):
        loss: Loss = importlib.import_module(task.loss).LOSS
        return loss
    return task.loss
