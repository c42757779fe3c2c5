"""What every objective offers."""

from __future__ import annotations

from abc import ABC, abstractmethod

import paddle
from paddle import nn

from fleetbert.models.heads import Headed
from fleetbert.tasks import Arrays, Part


class Objective(ABC):
    """The network is the one of the task's head. `has_classes`: it gives logits of the labels.
    `pooled`: the loss needs the pooler. `passes`: 2 where `again` comes after the gradients of
    `loss`."""

    has_classes = False
    pooled = True
    passes = 1

    def prepare(self, network: Headed) -> None:
        """Change a network before its weights are given to an optimizer."""
        if not self.pooled:  # data parallel must not wait for its gradients
            for weight in network.network.bert.pooler.parameters():
                weight.stop_gradient = True

    @abstractmethod
    def loss(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        """A float32 scalar: the sum over the examples, each with its `weight`."""

    def again(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        """As `loss`, of the same arrays, when its gradients are there; theirs are added."""
        raise NotImplementedError

    def predict(self, network: nn.Layer, arrays: Arrays) -> Part:
        """What `tasks.Task.evaluate_parts` needs of one batch: the outputs of its texts."""
        logits = network(**arrays["inputs"]).astype("float32").numpy()
        return {"texts": arrays["texts"], "logits": logits}
