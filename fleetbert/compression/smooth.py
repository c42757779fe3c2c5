"""Smoothing: inputs of int8 layers whose channels are of like size; see `graph.smooth`.

Channel j is divided by max|x_j|^a / max|w_j|^(1 - a) over calibration texts (Xiao et al. 2023,
equation 4): with a = 0 only weights get smoother, with a = 1 only inputs. The exponent a of each
input is the one with the least token error (see `sensitivity`) of the layers that read it, on a few
of those texts whose largest values are left out for that: else a high one, which fits just these
values, would seem too good.

PaddleSlim's `quant.advanced.Smooth` has one exponent for all layers and folds the scales
into the norm, of a network in dygraph: right only where no residual reads the norm's output, as it
does in BERT.
"""

from __future__ import annotations

from typing import NamedTuple, Sequence

import numpy as np

from fleetbert.bundle import Smoothed
from fleetbert.compression import split
from fleetbert.compression.sensitivity import Layers, relative_errors, spread
from fleetbert.compression.texts import Feeds
from fleetbert.graph import int8
from fleetbert.graph import smooth as graph
from fleetbert.graph import split as feed_forwards
from fleetbert.graph.program import ProgramDesc
from fleetbert.graph.weights import quantize, widen

EXPONENTS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
# A product with a vector costs a few per cent of a layer: it stands where it takes away more than
# this share of the error. What is free stands where it takes away any.
WORTH = 0.1


class Scales(NamedTuple):
    """by_input: what each channel is divided by, float32 [K]; smoothed: for the manifest; largest:
    outputs of the units of feed-forwards, for `split.choose`."""

    by_input: dict[str, np.ndarray]
    smoothed: dict[str, Smoothed]
    largest: dict[str, np.ndarray]


def choose(
    program: ProgramDesc, layers: Layers, batches: Sequence[Feeds], left: Sequence[str] = ()
) -> Scales:
    """The scales of those inputs of an unfused program that are better smoothed.

    layers: of that program; left: weights of layers that stay float32.
    """
    readers = {
        source: [name for name in names if name not in left]
        for source, names in graph.inputs(program).items()
    }
    readers = {source: names for source, names in readers.items() if names}
    largest: dict[str, list[np.ndarray]] = {source: [] for source in readers}
    few = {id(batch) for batch in spread(batches)}
    others = np.array([id(batch) not in few for batch in batches])
    others |= not others.any()
    few_inputs = []
    units: dict[str, np.ndarray] = {}
    pairs = feed_forwards.pairs(layers.program)
    for batch, inputs in zip(batches, layers.run(batches, "smooth")):
        split.note_largest(units, pairs, inputs)
        for source, names in readers.items():
            largest[source].append(np.abs(inputs[names[0]]).max(0))
        if id(batch) in few:
            few_inputs.append(inputs)
    scales, smoothed = {}, {}
    for source, names in readers.items():
        x = np.concatenate([inputs[names[0]] for inputs in few_inputs])
        weights = [layers.parameters[name] for name in names]
        maxima = np.stack(largest[source])
        seen = maxima[others]
        every = {0.0: np.ones(x.shape[1], np.float32)}
        every.update((a, scales_of(seen.max(0), weights, a)) for a in EXPONENTS)
        exact = [x @ weight for weight in weights]
        errors = {a: _error(x, seen, weights, exact, by) for a, by in every.items()}
        best = min(errors, key=lambda a: errors[a])
        least = errors[0.0] * (1.0 if graph.is_free(program, source) else 1 - WORTH)
        if errors[best] >= least:
            continue
        scales[source] = scales_of(maxima.max(0), weights, best)
        for name in names:
            smoothed[name] = Smoothed(exponent=best, former_error=errors[0.0], error=errors[best])
    return Scales(scales, smoothed, units)


def scales_of(largest: np.ndarray, weights: Sequence[np.ndarray], exponent: float) -> np.ndarray:
    """What each of K channels is divided by: float32 [K], 1 in the geometric mean.

    largest: of the channel's magnitudes, [K]; weights: of the layers that read it, [K, N] each.
    """
    inputs = np.maximum(largest, 1e-5)
    rows = np.maximum(np.max([np.abs(weight).max(1) for weight in weights], 0), 1e-5)
    unscaled = inputs**exponent / rows ** (1 - exponent)
    scales: np.ndarray = (unscaled / np.exp(np.log(unscaled).mean())).astype(np.float32)
    return scales


def _error(
    x: np.ndarray,
    maxima: np.ndarray,
    weights: Sequence[np.ndarray],
    exact: Sequence[np.ndarray],
    by: np.ndarray,
) -> float:
    """The token error of the layers that read x, [tokens, K], divided by `by`; maxima: of each
    calibration batch, [batches, K]. The threshold is the mean of the batches' largest values."""
    threshold = float((maxima / by).max(1).mean())
    x8 = int8.round_input(x / by, threshold)
    total = 0.0
    for weight, y in zip(weights, exact):
        rounded = widen(quantize(weight * by[:, None], 1))
        total += float(relative_errors(x8 @ rounded, y).mean())
    return (total / len(weights)) ** 0.5
