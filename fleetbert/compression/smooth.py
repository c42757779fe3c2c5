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
from fleetbert.compression.observed import Observed
from fleetbert.compression.sensitivity import Layers, relative_errors
from fleetbert.graph import int8
from fleetbert.graph import smooth as graph
from fleetbert.graph.program import ProgramDesc
from fleetbert.graph.weights import quantize, widen

EXPONENTS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
# A product with a vector costs a few per cent of a layer: it stands where it takes away more than
# this share of the error. What is free stands where it takes away any.
WORTH = 0.1


class Scales(NamedTuple):
    """by_input, by_weight: what each channel is divided by, float32 [K], by the variable and by the
    weight of each layer that reads it; smoothed: for the manifest."""

    by_input: dict[str, np.ndarray]
    by_weight: dict[str, np.ndarray]
    smoothed: dict[str, Smoothed]


def choose(
    program: ProgramDesc, layers: Layers, observed: Observed, left: Sequence[str] = ()
) -> Scales:
    """The scales of those inputs of an unfused program that are better smoothed.

    layers: of that program, as observed; left: weights of layers that stay float32.
    """
    readers = {
        source: [name for name in names if name not in left]
        for source, names in graph.inputs(program).items()
    }
    others = ~observed.is_few
    others |= not others.any()
    scales = Scales({}, {}, {})
    for source, names in readers.items():
        if not names:
            continue
        x = np.concatenate([inputs[names[0]] for inputs in observed.few])
        weights = [layers.parameters[name] for name in names]
        maxima = observed.largest(names[0])
        seen = maxima[others]
        every = {0.0: np.ones(x.shape[1], np.float32)}
        every.update((a, scales_of(seen.max(0), weights, a)) for a in EXPONENTS)
        exact = [x @ weight for weight in weights]
        errors = {a: _error(x, seen, weights, exact, by) for a, by in every.items()}
        best = min(errors, key=lambda a: errors[a])
        least = errors[0.0] * (1.0 if graph.is_free(program, source) else 1 - WORTH)
        if errors[best] >= least:
            continue
        by = scales.by_input[source] = scales_of(maxima.max(0), weights, best)
        entry = Smoothed(exponent=best, former_error=errors[0.0], error=errors[best])
        for name in names:
            scales.by_weight[name], scales.smoothed[name] = by, entry
    return scales


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
