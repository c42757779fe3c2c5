"""Binary cross entropy of each label."""

from __future__ import annotations

import numpy as np

import fleetbert.compat.prepared  # noqa: F401  isort: skip
import paddle
import paddle.nn.functional as F

from fleetbert.compat.training import binary_cross_entropy
from fleetbert.tasks.collect import Arrays
from fleetbert.tasks.loss import Loss, symmetric_divergence_of_sigmoids


class BinaryCrossEntropy(Loss):
    """Several labels for each text; of a text the mean over the labels.

    positive: what a text that has a label counts in the label's loss, float32 [labels]; None: as
    much as one that has it not."""

    regularizers = frozenset({"label_smoothing", "r_drop", "positive_weights"})

    def __init__(self, positive: np.ndarray | None = None):
        self.positive = None if positive is None else paddle.to_tensor(positive)

    def with_positive_weights(self, weights: np.ndarray) -> Loss:
        return BinaryCrossEntropy(weights)

    def of_outputs(self, outputs: paddle.Tensor, arrays: Arrays) -> paddle.Tensor:
        losses = binary_cross_entropy(outputs, arrays["labels"].astype("float32"), self.positive)
        return (losses.mean(-1) * arrays["weight"]).sum()

    def of_uniform(self, outputs: paddle.Tensor, arrays: Arrays) -> paddle.Tensor:
        """Where having a label is as likely as not."""
        losses = binary_cross_entropy(outputs, paddle.full_like(outputs, 0.5), None)
        return (losses.mean(-1) * arrays["weight"]).sum()

    def divergence(
        self, first: paddle.Tensor, second: paddle.Tensor, arrays: Arrays
    ) -> paddle.Tensor:
        apart = symmetric_divergence_of_sigmoids(first, second)
        return (apart.mean(-1) * arrays["weight"]).sum()

    def of_teacher(
        self, outputs: paddle.Tensor, known: paddle.Tensor, arrays: Arrays, temperature: float
    ) -> paddle.Tensor:
        soft = F.sigmoid(known / temperature)
        losses = binary_cross_entropy(outputs / temperature, soft, None) * temperature**2
        return (losses.mean(-1) * arrays["weight"]).sum()


LOSS = BinaryCrossEntropy()
