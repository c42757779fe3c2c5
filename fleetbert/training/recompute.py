"""Less memory for more time: a layer keeps its input only, and computes the rest again in the
backward (Chen et al. 2016). One more forward of the encoder for each step.
"""

from __future__ import annotations

import paddle
from paddle import nn
from paddle.distributed.fleet.utils import recompute

from fleetbert.models.bert import EncoderLayer
from fleetbert.models.cpu import Random


def apply(network: nn.Layer, random: Random) -> None:
    """Change the training-time forward of the encoder's layers in place, after `cpu.accelerate`.

    random: what dropout draws from besides Paddle's generator, which `recompute` takes back itself.
    """
    for layer in network.sublayers():
        if isinstance(layer, EncoderLayer):
            forward = _recomputed(layer, layer.forward, random)
            layer.forward = forward  # type: ignore[method-assign]


def _recomputed(layer, forward, random):
    def run(hidden, mask=None):
        if not layer.training or hidden.stop_gradient or not paddle.is_grad_enabled():
            return forward(hidden, mask)
        drawn = random.generator.bit_generator.state
        again = False

        def compute(hidden, mask):
            nonlocal again
            bits = random.generator.bit_generator
            now = bits.state
            if again:
                bits.state = drawn
            try:
                return forward(hidden, mask)
            finally:
                if again:
                    bits.state = now
                again = True

        return recompute(compute, hidden, mask)

    return run
