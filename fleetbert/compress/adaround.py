"""AdaRound: each weight goes up or down so that a layer's output changes least (Nagel et al. 2020,
"Up or Down? Adaptive Rounding for Post-Training Quantization", sections 3.3 and 4).

Paddle 2.6.2 has a `round_type="adaround"` of its own, which cannot work: its loss is computed from
outputs that are fed as data, so that nothing is learned from them, and with `onnx_format=True` the
integers that it leaves are quantized once more (SST-2 falls from 0.88 to 0.51). So this is done
here, layer by layer. For a layer's inputs as int8, Q [tokens, K], the mean squared change of an
output is d'Ad, where d is the change of its column of the weight and A = Q'Q / tokens: A says all
about the texts, and every step is of all of them.
"""

from __future__ import annotations

import logging
from typing import Sequence

import numpy as np

from fleetbert.compress.calibrate import Calibration
from fleetbert.compress.sensitivity import Layers
from fleetbert.graph.weights import Quantized, largest, widen

log = logging.getLogger(__name__)

STEPS = 300
RATE = 0.05
# The stretched sigmoid's ends (Nagel et al. 2020, equation 23).
LOW, HIGH = -0.1, 1.1
# Of the steps, before anything is pushed to an integer; then how sharply, from first to last.
WARM_UP = 0.2
BETAS = (20.0, 2.0)
# What pushing weighs beside an output's error, that of rounding to the nearest being 1.
PUSH = 20.0


def learn(
    found: Calibration,
    layers: Layers,
    batches: Sequence[dict[str, np.ndarray]],
    thresholds: dict[str, float],
) -> Calibration:
    """The calibration with other integers for the weights that have a threshold, by the inputs
    that their layers get for `batches`."""
    sums: dict[str, np.ndarray] = {}  # by input: q, k and v read one
    tokens = 0
    for inputs in layers.run(batches):
        for number, (source, name) in enumerate(
            {layers.inputs[name]: name for name in thresholds}.items()
        ):
            x = as_int8(inputs[name], thresholds[name])
            tokens += 0 if number else len(x)
            sums[source] = sums.get(source, 0) + x.T @ x
    weights, parameters = dict(found.weights), dict(found.parameters)
    for name in thresholds:
        weight, nearest = layers.parameters[name], weights[name]
        texts = sums[layers.inputs[name]] / np.float32(tokens)
        weights[name] = round_weight(weight, nearest, texts)
        parameters[name] = weights[name].integers.astype(parameters[name].dtype)
        before, after = (float(errors(weight, w, texts).sum()) for w in (nearest, weights[name]))
        log.info(f"adaround: {name}: {after / max(before, 1e-30):.2f} of the error of rounding")
    return found._replace(weights=weights, parameters=parameters)


def as_int8(x: np.ndarray, threshold: float) -> np.ndarray:
    """The float32 values that the int8 layer of `graph.int8` computes with."""
    step = np.float32(threshold / largest(8))
    return np.clip(np.rint(x / step), -128, 127).astype(np.float32) * step


def round_weight(weight: np.ndarray, nearest: Quantized, texts: np.ndarray) -> Quantized:
    """A float32 weight [K, N] rounded up or down; its scales are those of `nearest`.

    texts: A of this module's text, [K, K]. A column whose error would not get smaller stays as it
    is in `nearest`.
    """
    step = (nearest.scales / np.float32(largest(8)))[None, :]
    below = np.floor(weight / step)
    part = weight / step - below
    v = -np.log((HIGH - LOW) / (part - LOW) - 1).astype(np.float32)
    scale = 1 / np.maximum(errors(weight, nearest, texts), np.float32(1e-30))
    mean, square = np.zeros_like(v), np.zeros_like(v)
    for number in range(1, STEPS + 1):
        soft = sigmoid(v)
        h = np.clip(soft * (HIGH - LOW) + LOW, 0, 1)
        slope = 2 * scale * step * (texts @ ((h - part) * step))
        done = (number / STEPS - WARM_UP) / (1 - WARM_UP)
        if done > 0:
            beta = BETAS[1] + 0.5 * (BETAS[0] - BETAS[1]) * (1 + np.cos(done * np.pi))
            away = 2 * h - 1
            slope -= PUSH / len(h) * 2 * beta * np.sign(away) * np.abs(away) ** (beta - 1)
        slope *= (HIGH - LOW) * soft * (1 - soft) * ((h > 0) & (h < 1))
        # Adam (Kingma and Ba 2015, algorithm 1).
        mean += 0.1 * (slope - mean)
        square += 0.001 * (slope * slope - square)
        size = RATE * np.sqrt(1 - 0.999**number) / (1 - 0.9**number)
        v -= np.float32(size) * mean / (np.sqrt(square) + np.float32(1e-12))
    up = np.clip(sigmoid(v) * (HIGH - LOW) + LOW, 0, 1) >= 0.5
    learned = nearest._replace(integers=np.clip(below + up, -127, 127).astype(np.int8))
    better = errors(weight, learned, texts) < errors(weight, nearest, texts)
    integers = np.where(better[None, :], learned.integers, nearest.integers)
    return nearest._replace(integers=integers)


def sigmoid(v: np.ndarray) -> np.ndarray:
    found: np.ndarray = 1 / (1 + np.exp(-v))
    return found


def errors(weight: np.ndarray, rounded: Quantized, texts: np.ndarray) -> np.ndarray:
    """The mean squared change of each output, [N]."""
    change = widen(rounded) - weight
    found: np.ndarray = (change * (texts @ change)).sum(0)
    return found
