"""Paddle's AdamW, which on a CPU computes large weights by oneDNN, in two thirds of the processor
time of Paddle's kernel (2.6.2), and of a table of words only the rows that training touches. States
and checkpoints are Paddle's."""

from __future__ import annotations

import math
from typing import Any, Iterator, List, Sequence

import numpy as np

import fleetbert.compat.prepared  # noqa: F401  isort: skip
import paddle

from fleetbert.compat import onednn, training
from fleetbert.compat.onednn import ADD, MULTIPLY, PostOp, view
from fleetbert.compat.onednn_primitives import SUM
from fleetbert.compat.touched_rows import TouchedRows

Arrays = List[np.ndarray]
# Elements: below them the calls cost more than they save; as many as a processor's cache keeps.
SMALLEST, PIECE = 1 << 15, 1 << 20


def by_onednn(parameter: paddle.Tensor, gradient: paddle.Tensor) -> bool:
    """Whether `AdamW` computes this parameter by oneDNN; it then multiplies the gradient by
    `Clip.factor` itself."""
    return (
        math.prod(parameter.shape) >= SMALLEST  # `Tensor.size` takes ten times as long
        and parameter.place.is_cpu_place()
        and parameter.dtype == gradient.dtype == paddle.float32
        and gradient.is_dense()
    )


class AdamW(paddle.optimizer.AdamW):  # type: ignore[misc]  # Paddle has no types
    """AdamW (Loshchilov and Hutter 2019, algorithm 2), where oneDNN is. grad_clip: a
    `training.optimizer.Clip`."""

    words: TouchedRows | None = None

    def keep_rows(self, table: paddle.Tensor) -> TouchedRows:
        """Keep moments of those rows of a table only that have a gradient; called before the first
        step. Returns what the forward has to look words up in."""
        loaded = [self._accumulators_holder.pop(key, None) for key in self._moments_of(table)]
        self.words = TouchedRows(table, [moments for moments in loaded if moments is not None])
        return self.words

    def _moments_of(self, table: paddle.Tensor) -> list[str]:
        return [f"{table.name}_{name}_0" for name in (self._moment1_acc_str, self._moment2_acc_str)]

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = super().state_dict()
        if self.words is not None and state:
            state.update(zip(self._moments_of(self.words.table), self.words.moments()))
        return state

    def clear_grad(self, set_to_zero: bool = True) -> None:
        super().clear_grad(set_to_zero)
        if self.words is not None:
            self.words.forget()

    def _add_accumulator(self, name: str, param: paddle.Tensor, *args: Any, **keys: Any) -> object:
        moment = name in (self._moment1_acc_str, self._moment2_acc_str)
        if self.words is not None and param is self.words.table and moment:
            return None
        return super()._add_accumulator(name, param, *args, **keys)

    def _apply_optimize(self, loss: object, startup_program: object, params_grads: Any) -> object:
        if self.words is not None:
            gradient = self.words.gradient()
            if gradient is not None:
                params_grads = [(self.words.table, gradient), *params_grads]
        return super()._apply_optimize(loss, startup_program, params_grads)

    def _append_optimize_op(self, block: object, pair: Any) -> object:
        parameter, gradient = pair
        if not by_onednn(parameter, gradient):
            return super()._append_optimize_op(block, pair)
        names = self._beta1_pow_acc_str, self._beta2_pow_acc_str
        powers = [self._get_accumulator(name, parameter) for name in names]
        first, second = (1 - power.item() for power in powers)
        rate = self._create_param_lr(pair).item()
        decays = self._apply_decay_param_fun is None or self._apply_decay_param_fun(parameter.name)
        kept = 1 - rate * self._weight_decay if decays else 1.0
        numbers = (
            (1 - self._beta1) * self._grad_clip.factor,
            (1 - self._beta2) * self._grad_clip.factor**2,
            self._epsilon * math.sqrt(second),
            -rate * math.sqrt(second) / first / kept,
            kept,
        )
        for arrays in self._arrays(parameter, gradient.contiguous()):
            _move(arrays, (self._beta1, self._beta2), numbers)
        if self.words is not None and parameter is self.words.table:
            self.words.shrink_others(kept)
        for power, beta in zip(powers, (self._beta1, self._beta2)):
            training.multiply(power, beta)
        return None

    def _arrays(self, parameter: paddle.Tensor, gradient: paddle.Tensor) -> Iterator[Arrays]:
        """Weight, gradient and moments, as flat arrays of all elements that have moments."""
        if self.words is not None and parameter is self.words.table:
            yield from self.words.blocks(gradient)
            return
        names = self._moment1_acc_str, self._moment2_acc_str
        moments = (self._get_accumulator(name, parameter) for name in names)
        size = math.prod(parameter.shape)
        yield [onednn.array(tensor, size) for tensor in (parameter, gradient, *moments)]


def _move(arrays: Arrays, betas: tuple[float, float], numbers: Sequence[float]) -> None:
    """Update a weight and its moments by its gradient; arrays: weight, gradient, moments.

    With numbers a to e: first = beta first + a gradient, second = beta second + b gradient^2,
    weight = (weight + d first / (sqrt(second) + c)) e.
    """
    kept = np.array(numbers, np.float32)
    a, b, c, d, e = (view(kept[place : place + 1]) for place in range(5))
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
