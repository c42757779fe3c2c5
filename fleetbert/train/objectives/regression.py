"""A number for each text or pair of texts: squared error."""

from __future__ import annotations

import paddle
from paddle import nn

from fleetbert.tasks import Arrays
from fleetbert.train.objectives.objective import Objective


class SquaredError(Objective):
    def loss(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        """Weighted sum of the squared errors."""
        values = model(**arrays["inputs"]).astype("float32").flatten()  # (texts, 1)
        return ((values - arrays["labels"]).square() * arrays["weight"]).sum()
