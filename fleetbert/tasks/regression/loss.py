"""The squared error."""

from __future__ import annotations

import fleetbert.compat.prepared  # noqa: F401  isort: skip
import paddle

from fleetbert.tasks.collect import Arrays
from fleetbert.tasks.loss import Loss


class SquaredError(Loss):
    """A number for each text or pair of texts."""

    regularizers = frozenset({"r_drop"})

    def divergence(
        self, first: paddle.Tensor, second: paddle.Tensor, arrays: Arrays
    ) -> paddle.Tensor:
        """The squared difference, as the authors of R-Drop took it for numbers."""
        return ((first - second).flatten().square() * arrays["weight"]).sum()

    def of_outputs(self, outputs: paddle.Tensor, arrays: Arrays) -> paddle.Tensor:
        return ((outputs.flatten() - arrays["labels"]).square() * arrays["weight"]).sum()

    def of_teacher(
        self, outputs: paddle.Tensor, known: paddle.Tensor, arrays: Arrays, temperature: float
    ) -> paddle.Tensor:
        return ((outputs - known).flatten().square() * arrays["weight"]).sum()


LOSS = SquaredError()
