"""The layers that networks are built of: Paddle's, which compute with functions that may change.

In the steps and evaluations of a training on a CPU these are `models.fused`'s, see `during`. Export
and other devices have Paddle's own. Which they are is no condition in a forward: `paddle.jit` would
make it one of the program. Hidden states: (rows, length, hidden).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Iterator

import numpy as np
import paddle.nn.functional as F
from paddle import Tensor, nn
from paddle.distributed.fleet.utils import recompute

if TYPE_CHECKING:
    from fleetbert.models.bert import EncoderLayer


class Functions:
    """What layers compute with: Paddle's own.

    generator: what dropout draws from where that is not Paddle's; whoever runs the steps of a
    training sets it anew for each.
    """

    generator = np.random.Generator(np.random.SFC64(0))

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """x W + b; x (..., in), weight (in, out)."""
        return F.linear(x, weight, bias)

    def embedding(self, layer: Embedding, ids: Tensor) -> Tensor:
        return nn.Embedding.forward(layer, ids)

    def layer_norm(self, layer: LayerNorm, x: Tensor) -> Tensor:
        return nn.LayerNorm.forward(layer, x)

    def dropout(self, layer: Dropout, x: Tensor) -> Tensor:
        return nn.Dropout.forward(layer, x)

    def encoder_layer(self, layer: EncoderLayer, hidden: Tensor, mask: Tensor | None) -> Tensor:
        return layer.of_parts(hidden, mask)


_functions = Functions()


@contextlib.contextmanager
def during(functions: Functions) -> Iterator[None]:
    """Let all layers compute with these functions."""
    global _functions
    before, _functions = _functions, functions
    try:
        yield
    finally:
        _functions = before


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`Functions.linear`, for layers with a weight that they change."""
    return _functions.linear(x, weight, bias)


class Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return _functions.linear(x, self.weight, self.bias)


class Embedding(nn.Embedding):
    def forward(self, ids: Tensor) -> Tensor:
        return _functions.embedding(self, ids)


class LayerNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return _functions.layer_norm(self, x)


class Dropout(nn.Dropout):
    def forward(self, x: Tensor) -> Tensor:
        return _functions.dropout(self, x)


def encoder_layer(layer: EncoderLayer, hidden: Tensor, mask: Tensor | None) -> Tensor:
    return _functions.encoder_layer(layer, hidden, mask)


def recomputed(layer: EncoderLayer, hidden: Tensor, mask: Tensor | None) -> Tensor:
    """An `encoder_layer` that keeps its input only, and computes the rest again in the backward
    (Chen et al. 2016): less memory, for one more forward of the encoder in each step."""
    functions, again = _functions, False
    if hidden.stop_gradient:  # below frozen embeddings: Paddle would give the weights no gradient
        return functions.encoder_layer(layer, hidden, mask)
    # Paddle takes its own generator back.
    drawn = functions.generator.bit_generator.state

    def run(hidden: Tensor, mask: Tensor | None) -> Tensor:
        nonlocal again
        bits = functions.generator.bit_generator
        now = bits.state
        if again:
            bits.state = drawn
        with during(functions):
            output = functions.encoder_layer(layer, hidden, mask)
        if again:
            bits.state = now
        again = True
        return output

    return recompute(run, hidden, mask)
