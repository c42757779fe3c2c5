"""Inverted dropout (Srivastava et al. 2014) of training steps on a CPU, drawn by NumPy in a tenth
of the time that Paddle takes."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import paddle
from paddle import Tensor

from fleetbert.compat import onednn
from fleetbert.compat.onednn import MULTIPLY, PostOp, view
from fleetbert.compat.onednn_primitives import LINEAR


def dropout(x: Tensor, rate: float, rng: np.random.Generator) -> Tensor:
    """Dropout of a tensor."""
    drawn = Dropout.draw(tuple(x.shape), rate, rng)
    if drawn.kept is None:
        return x
    return x * paddle.to_tensor(drawn.kept * np.float32(drawn.scale))


class Dropout(NamedTuple):
    """Dropout of arrays. Elements that are kept are scaled where they are multiplied next,
    in float32: bfloat16 has no 1 / 0.9."""

    kept: np.ndarray | None  # bool; None: all
    scale: float

    @classmethod
    def draw(cls, shape: tuple[int, ...], rate: float, rng: np.random.Generator) -> Dropout:
        if not rate:
            return cls(None, 1.0)
        size = math.prod(shape)
        # By 16 random bits each.
        drawn = rng.integers(0, 2**64, (size + 3) // 4, dtype=np.uint64).view(np.uint16)[:size]
        return cls((drawn >= round(rate * 65536)).reshape(shape), 1 / (1 - rate))

    def of(self, x: np.ndarray) -> np.ndarray:
        """Zero what is dropped, without scaling the rest."""
        if self.kept is None:
            return x
        kept = np.empty_like(x)
        onednn.multiply(view(x), view(self.kept), view(kept))
        return kept

    @property
    def scaling(self) -> tuple[PostOp, ...]:
        return () if self.kept is None else (PostOp(LINEAR, factor=self.scale),)

    @property
    def then(self) -> tuple[PostOp, ...]:
        """Drop and scale the outcome of a product."""
        return () if self.kept is None else (PostOp(MULTIPLY, view(self.kept)), *self.scaling)
