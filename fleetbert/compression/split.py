"""Which units of feed-forwards stand in pieces, and the threshold then; see `graph.split`.

GELU's outputs have a few units far above all others: of MiniLM's first layer one reaches 24, of
10,000 values one is above 4.6. Lower thresholds are tried, each with as many pieces as let every
unit keep its largest value in calibration texts, and the one stays with which the second Linear has
the least token error (see `sensitivity`).
"""

from __future__ import annotations

from typing import Mapping

import numpy as np

from fleetbert.bundle import Split
from fleetbert.compression.observed import Observed
from fleetbert.compression.sensitivity import Layers, relative_errors
from fleetbert.graph import int8
from fleetbert.graph import split as graph
from fleetbert.graph.weights import Quantized, widen

# Pieces come in blocks, of which oneDNN's kernels compute their columns.
BLOCK = 16
# Of the units, how many pieces may stand beside them, and the least share of the error that they
# have to take away: they cost time.
MOST, WORTH = 16, 0.1
# What a calibrated threshold is multiplied with.
FACTORS = tuple(0.85**step for step in range(1, 16))
# Times the least error that counts as hardly more: fewer pieces then.
NEARLY = 1.05


def choose(
    rounded: Mapping[str, Quantized],
    layers: Layers,
    observed: Observed,
    thresholds: Mapping[str, float],
) -> dict[str, Split]:
    """The inputs that are better split, by the weight of the second Linear.

    rounded, thresholds: weights and what their inputs are cut at, by weight. observed: of `layers`.
    """
    pairs = {
        second: pair
        for second, pair in graph.pairs(layers.program).items()
        if second in thresholds and pair.first in thresholds
    }
    chosen = {}
    for second, pair in pairs.items():
        both = (second, pair.first)
        x, given = (np.concatenate([inputs[name] for inputs in observed.few]) for name in both)
        highest = observed.highest[second].max(0)
        weight = widen(rounded[second])
        exact = x @ layers.parameters[second]
        first = layers.parameters[pair.first], layers.parameters[pair.bias], pair.activation
        former = thresholds[second]

        def error(threshold: float, units: np.ndarray) -> float:
            y = int8.round_input(x, threshold) @ weight  # noqa: B023
            some = graph.pieces(units, threshold)
            pieces = graph.outputs(given, *first, some)  # noqa: B023
            y += int8.round_input(pieces, threshold) @ weight[some.units]  # noqa: B023
            return float(relative_errors(y, exact).mean()) ** 0.5  # noqa: B023

        none = np.zeros(0, np.int64)
        tried = {former: (error(former, none), none)}
        most = max(BLOCK, len(weight) // MOST // BLOCK * BLOCK)
        for factor in FACTORS:
            units = needed(highest, former * factor, most)
            if units is None:
                break
            tried[former * factor] = error(former * factor, units), units
        least = min(token_error for token_error, _ in tried.values())
        near = [value for value in tried if tried[value][0] <= NEARLY * least]
        threshold = min(near, key=lambda value: (len(tried[value][1]), tried[value][0]))
        if tried[threshold][0] < (1 - WORTH) * tried[former][0]:
            chosen[second] = Split(
                former=former,
                threshold=threshold,
                units=tried[threshold][1].tolist(),
                former_error=tried[former][0],
                error=tried[threshold][0],
            )
    return chosen


def needed(largest: np.ndarray, threshold: float, most: int) -> np.ndarray | None:
    """The units that need pieces, each as often as it needs one, in whole blocks: those that are
    nearest to one more fill the last. None where that is more than `most`.

    largest: output of each unit, float32 [units].
    """
    excess = largest / threshold - 1
    times = np.maximum(np.ceil(excess), 0).astype(np.int64)
    count = -(-int(times.sum()) // BLOCK) * BLOCK
    if not 0 < count <= most:
        return None if count else np.zeros(0, np.int64)
    nearest = np.argsort(excess - times, kind="stable")[::-1]
    times[nearest[: count - int(times.sum())]] += 1
    return np.repeat(np.arange(len(times)), times)
