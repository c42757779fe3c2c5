"""A label for each text or pair of texts: cross entropy."""

from __future__ import annotations

import paddle
import paddle.nn.functional as F
from paddle import nn

from fleetbert.tasks import Arrays
from fleetbert.train.objectives.objective import Objective


class CrossEntropy(Objective):
    has_classes = True

    def loss(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        """Weighted sum of the cross entropies."""
        logits = model(**arrays["inputs"])
        losses = F.cross_entropy(logits.astype("float32"), arrays["labels"], reduction="none")
        return (losses.flatten() * arrays["weight"]).sum()
