"""Paddle's static mode, for what builds and runs programs."""

from __future__ import annotations

import contextlib
from typing import Iterator, Sequence

import numpy as np

import fleetbert.compat.prepared  # noqa: F401  isort: skip
import paddle

from fleetbert.compat import versions


@contextlib.contextmanager
def static_graph() -> Iterator[None]:
    """Static mode, and the former mode afterwards. Programs in it are ProgramDescs on Paddle 3 too:
    3.3.1's own are of another kind, which its quantization and our passes cannot read."""
    dynamic = paddle.in_dynamic_mode()
    paddle.enable_static()
    old = paddle.pir_utils.OldIrGuard() if versions.is_paddle_3() else contextlib.nullcontext()
    try:
        with old:
            yield
    finally:
        if dynamic:
            paddle.disable_static()


def weight_scales(steps: Sequence[float], largest: int, weight: np.ndarray) -> np.ndarray:
    """Scales (the magnitude that becomes the integer `largest`) of a weight [inputs, outputs], from
    the steps that WeightQuantization wrote; 3.3.1 with NumPy 2 writes none."""
    if not steps:
        return np.asarray(np.abs(weight).max(0))
    return np.array(steps, np.float32) * np.float32(largest)
