"""Cross entropy among the documents of a query."""

from __future__ import annotations

import fleetbert.compat.prepared  # noqa: F401  isort: skip
import paddle
import paddle.nn.functional as F

from fleetbert.tasks.collect import Arrays
from fleetbert.tasks.loss import (
    Loss,
    symmetric_divergence,
    symmetric_divergence_of_sigmoids,
)


class Relevance(Loss):
    """Documents that answer a query before those that do not.

    With one negative the logistic loss of the difference (RankNet: Burges et al. 2005, section 3),
    with several the cross entropy of the right one among all (localized contrastive estimation: Gao
    et al. 2021, equation 6), which is the same for one. Without, each pair's binary cross entropy
    (Nogueira and Cho 2019)."""

    regularizers = frozenset({"r_drop"})

    def divergence(
        self, first: paddle.Tensor, second: paddle.Tensor, arrays: Arrays
    ) -> paddle.Tensor:
        """Of the probabilities of an example's documents; of single pairs of the pair's."""
        first, second = (_by_example(values, arrays) for values in (first, second))
        if first.shape[1] > 1:
            apart = symmetric_divergence(first, second)
        else:
            apart = symmetric_divergence_of_sigmoids(first, second).flatten()
        return (apart * arrays["weight"]).sum()

    def of_outputs(self, outputs: paddle.Tensor, arrays: Arrays) -> paddle.Tensor:
        """arrays: `places` int64 (examples, pairs of one), the right one first; `labels` float32
        (examples), of examples that are one pair."""
        values = _by_example(outputs, arrays)
        if values.shape[1] > 1:
            first = paddle.zeros(values.shape[:1], "int64")
            losses = F.cross_entropy(values, first, reduction="none")
        else:
            losses = F.binary_cross_entropy_with_logits(
                values[:, 0], arrays["labels"].astype("float32"), reduction="none"
            )
        return (losses.flatten() * arrays["weight"]).sum()

    def of_teacher(
        self, outputs: paddle.Tensor, known: paddle.Tensor, arrays: Arrays, temperature: float
    ) -> paddle.Tensor:
        """The squared error of the margin by which the right document leads each other one (Margin-
        MSE: Hofstätter et al. 2020, equation 4); of single pairs that of the score."""
        errors = _by_example(outputs - known, arrays)
        if errors.shape[1] > 1:
            errors = errors[:, :1] - errors[:, 1:]
        return (errors.square().mean(-1) * arrays["weight"]).sum()


def _by_example(values: paddle.Tensor, arrays: Arrays) -> paddle.Tensor:
    """Values (pairs, 1) as (examples, pairs of one)."""
    places = paddle.to_tensor(arrays["places"])
    return paddle.gather(values.flatten(), places.flatten()).reshape(places.shape)


LOSS = Relevance()
