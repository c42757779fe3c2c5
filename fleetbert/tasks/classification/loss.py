"""Cross entropy of the labels."""

from __future__ import annotations

import fleetbert.compat.prepared  # noqa: F401  isort: skip
import paddle
import paddle.nn.functional as F
from paddle import nn

from fleetbert.tasks.collect import Arrays
from fleetbert.tasks.loss import Loss


class CrossEntropy(Loss):
    """A label for each text or pair of texts."""

    has_classes = True

    def loss(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        logits = model(**arrays["inputs"])
        losses = F.cross_entropy(logits.astype("float32"), arrays["labels"], reduction="none")
        return (losses.flatten() * arrays["weight"]).sum()


LOSS = CrossEntropy()
