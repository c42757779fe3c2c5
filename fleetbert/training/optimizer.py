"""Optimizers: AdamW with warm-up and decay, but no weight decay of biases and LayerNorm (Devlin et
al. 2019, appendix A.2); LAMB; SGD, with momentum and LARS; Adagrad; and layer-wise learning rate
decay."""

from __future__ import annotations

import math
import re
from typing import Any, Callable, List, Sequence, Tuple

import paddle
from paddle import nn
from paddle.regularizer import L2Decay

from fleetbert import config as schema
from fleetbert.compat import adamw, onednn, training

# Each parameter and its gradient, if it has one.
Gradients = List[Tuple[paddle.Tensor, paddle.Tensor]]


def rate(settings: schema.Optimizer, total_steps: int) -> Callable[[int], float]:
    """Return the learning rate as a function of the optimizer steps done so far.

    Rises linearly over `warmup_ratio` of the steps, then falls to zero at the end, linearly or as
    half a cosine (Loshchilov and Hutter 2017), or stays.
    """
    warmup = settings.warmup_ratio * total_steps

    def at(step: int) -> float:
        rising = (step + 1) / warmup if warmup else 1.0
        falling = (total_steps - step) / max(1.0, total_steps - warmup)
        if settings.schedule == "constant":
            falling = 1.0
        elif settings.schedule == "cosine":
            falling = (1 - math.cos(math.pi * min(1.0, max(0.0, falling)))) / 2
        return settings.learning_rate * min(1.0, rising, max(0.0, falling))

    return at


class Clip(nn.ClipGradByGlobalNorm):
    """Clips the gradients' global norm. If that is not finite, the optimizer does nothing.

    `finite` says whether the last norm was. It is one of float32, so gradients above 1e19 are
    not finite either: their squares, which AdamW keeps, are not. Paddle computes the norm in
    this method too, but keeps it to itself, and reading the gradients a second time costs a
    CPU more than 1 % of a step.
    """

    finite = True
    factor = 1.0  # what the last gradients are multiplied by, or are to be
    # Whether the optimizer multiplies a parameter's gradient itself, when it reads it.
    leaves: Callable[[paddle.Tensor, paddle.Tensor], bool] | None = None
    # Where each rank updates a share of the parameters: theirs, and the sum over all ranks.
    share: set[str] | None = None
    add_up: Callable[[paddle.Tensor], object] | None = None

    @paddle.no_grad()
    def _dygraph_clip(self, params_grads: Gradients) -> Gradients:
        known = [(p, gradient) for p, gradient in params_grads if gradient is not None]
        counted = [g for p, g in known if self.share is None or p.name in self.share]
        squares = [training.squared_norm(g).reshape([1]) for g in counted]
        square = paddle.concat(squares).sum() if squares else paddle.zeros([])
        if self.add_up is not None:
            self.add_up(square)
        norm = square.sqrt()
        self.finite = math.isfinite(float(norm))
        if not self.finite:
            return []
        self.factor = min(1.0, float(self.clip_norm / norm))
        for parameter, gradient in known if self.factor < 1 else ():
            if self.leaves is None or not self.leaves(parameter, gradient):
                training.multiply(gradient, self.factor)
        return params_grads


def build(
    settings: schema.Optimizer, network: nn.Layer, total_steps: int
) -> tuple[paddle.optimizer.Optimizer, paddle.optimizer.lr.LRScheduler]:
    """Return the optimizer of the network's trainable parameters, and its schedule."""
    at = rate(settings, total_steps)
    schedule = paddle.optimizer.lr.LambdaDecay(1.0, at)
    spared = {p.name for n, p in network.named_parameters() if n.endswith("bias") or "norm" in n}
    trained = [p for p in network.parameters() if not p.stop_gradient]
    clip = Clip(settings.max_grad_norm or math.inf)
    if settings.layer_decay != 1:
        _slow_lower_layers(network, settings.layer_decay)
    shared = {"learning_rate": schedule, "parameters": trained, "grad_clip": clip}
    return _make(settings, spared, shared), schedule


def _make(
    settings: schema.Optimizer, spared: set[str], shared: dict[str, Any]
) -> paddle.optimizer.Optimizer:
    """Return the optimizer. spared: the names of the parameters without weight decay."""
    name, decay = settings.name, settings.weight_decay
    if name == "sgd":
        return paddle.optimizer.SGD(**shared)
    if name == "lars":
        return Lars(settings, spared, **shared)
    if name in ("momentum", "adagrad"):
        for parameter in shared["parameters"] if decay else ():
            parameter.regularizer = L2Decay(0.0 if parameter.name in spared else decay)
        if name == "momentum":
            return paddle.optimizer.Momentum(momentum=settings.momentum, **shared)
        return paddle.optimizer.Adagrad(epsilon=settings.epsilon, **shared)
    shared.update(beta1=settings.beta1, beta2=settings.beta2, epsilon=settings.epsilon)
    if name == "lamb":
        return paddle.optimizer.Lamb(
            **shared,
            lamb_weight_decay=decay,
            exclude_from_weight_decay_fn=lambda parameter: parameter.name in spared,
        )
    kind = paddle.optimizer.AdamW
    if onednn.is_there():
        kind, shared["grad_clip"].leaves = adamw.AdamW, adamw.by_onednn
    return kind(**shared, weight_decay=decay, apply_decay_param_fun=lambda name: name not in spared)


class Lars(paddle.optimizer.Momentum):
    """LARS (You et al. 2017, algorithm 1): a weight's rate is multiplied by `lars_coeff` and by the
    ratio of its norm to its gradient's. Biases and LayerNorm have the plain rate and no decay.

    Paddle's own (`paddle.incubate`) looks for these by parts of Paddle's names for parameters,
    which count what a process has built.
    """

    def __init__(self, settings: schema.Optimizer, spared: set[str], **shared: Any):
        super().__init__(momentum=settings.momentum, **shared)
        self.settings, self.spared = settings, spared

    def _append_optimize_op(self, block: object, pair: Sequence[paddle.Tensor]) -> object:
        parameter, gradient = pair
        move = gradient
        if parameter.name not in self.spared:
            decay = self.settings.weight_decay
            weight, slope = parameter.norm(), gradient.norm()
            trust = self.settings.lars_coeff * weight
            trust /= slope + decay * weight + self.settings.epsilon
            trust = paddle.where(weight * slope > 0, trust, paddle.ones_like(trust))
            move = trust * (gradient + decay * parameter)
        move = move * super()._create_param_lr(pair)
        return super()._append_optimize_op(block, (parameter, move))

    def _create_param_lr(self, pair: Sequence[paddle.Tensor]) -> paddle.Tensor:
        """Return 1: the moves have the rate already, as those that the velocity keeps do."""
        return paddle.ones_like(super()._create_param_lr(pair))


def _slow_lower_layers(network: nn.Layer, decay: float) -> None:
    """Give each layer `decay` times the learning rate of the layer above (Howard and Ruder 2018,
    section 3.2; for encoders Clark et al. 2020, appendix B). Pooler and head have the full rate."""
    depths = [(_depth(name), parameter) for name, parameter in network.named_parameters()]
    top = max((depth for depth, _ in depths if depth is not None), default=0) + 1
    for depth, parameter in depths:
        if depth is not None:
            parameter.optimize_attr["learning_rate"] *= decay ** (top - depth)


def _depth(name: str) -> int | None:
    """Return 0 for the embeddings, 1 for the first layer, ...; None above the encoder."""
    if ".embeddings." in name:
        return 0
    layer = re.search(r"\.encoder\.layers\.(\d+)\.", name)
    return None if layer is None else int(layer[1]) + 1
