"""Cross entropy of the labels."""

from __future__ import annotations

import fleetbert.compat.prepared  # noqa: F401  isort: skip
import paddle
import paddle.nn.functional as F

from fleetbert.tasks.collect import Arrays
from fleetbert.tasks.loss import Loss


class CrossEntropy(Loss):
    """A label for each text or pair of texts."""

    has_classes = True

    def of_outputs(self, outputs: paddle.Tensor, arrays: Arrays) -> paddle.Tensor:
        losses = F.cross_entropy(outputs, arrays["labels"], reduction="none")
        return (losses.flatten() * arrays["weight"]).sum()

    def of_teacher(
        self, outputs: paddle.Tensor, known: paddle.Tensor, arrays: Arrays, temperature: float
    ) -> paddle.Tensor:
        return (soft_cross_entropy(outputs, known, temperature) * arrays["weight"]).sum()


def soft_cross_entropy(
    logits: paddle.Tensor, known: paddle.Tensor, temperature: float
) -> paddle.Tensor:
    """Cross entropy of logits [..., labels] on a teacher's softened answers (Hinton et al. 2015).

    Both are divided by the temperature, and the result [...] is multiplied by its square, so that
    gradients keep their size.
    """
    soft = F.softmax(known / temperature)
    return -(soft * F.log_softmax(logits / temperature)).sum(-1) * temperature**2


LOSS = CrossEntropy()
