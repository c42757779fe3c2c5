"""The squared error."""

from __future__ import annotations

import fleetbert.compat.prepared  # noqa: F401  isort: skip
import paddle
from paddle import nn

from fleetbert.tasks.collect import Arrays
from fleetbert.tasks.loss import Loss


class SquaredError(Loss):
    """A number for each text or pair of texts."""

    def loss(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        values = model(**arrays["inputs"]).astype("float32").flatten()  # (texts, 1)
        return ((values - arrays["labels"]).square() * arrays["weight"]).sum()


LOSS = SquaredError()
