"""Clipping: the input of an int8 layer may be cut below the largest value that calibration found.

A few values far above all others make the steps of the others coarse. So smaller thresholds are
tried for each input, on texts without looking at labels, and the one stays with which the layers
that read it have the least token error (see `sensitivity`). That needs few texts: on halves of
SST-2's dev texts it chooses nearly the same thresholds, where a greedy search by the logits' error
only improves the half it was made on.
"""

from __future__ import annotations

from typing import Sequence

import numpy as np

from fleetbert import bundle as bundles
from fleetbert.compression.calibrate import Calibration
from fleetbert.compression.sensitivity import Layers, relative_errors
from fleetbert.graph import int8
from fleetbert.graph.weights import widen

# Of selection.data; 80 texts choose as 436 do.
TEXTS = 80
# What a calibrated threshold is multiplied with.
FACTORS = (1.0, 0.9, 0.8, 0.65, 0.5, 0.35, 0.2)


def choose(
    calibration: Calibration,
    layers: Layers,
    batches: Sequence[dict[str, np.ndarray]],
    thresholds: dict[str, float],
) -> dict[str, bundles.Clipped]:
    """The layers whose input is better cut, by weight."""
    readers: dict[str, list[str]] = {}  # by input: q, k and v read one
    for name in thresholds:
        readers.setdefault(layers.inputs[name], []).append(name)
    sums = {source: np.zeros(len(FACTORS)) for source in readers}
    counts = dict.fromkeys(readers, 0)
    for inputs in layers.run(batches):
        for source, names in readers.items():
            x = inputs[names[0]]
            counts[source] += len(x) * len(names)
            tried = [int8.round_input(x, thresholds[names[0]] * factor) for factor in FACTORS]
            for name in names:
                exact, weight = x @ layers.parameters[name], widen(calibration.weights[name])
                sums[source] += [relative_errors(x8 @ weight, exact).sum() for x8 in tried]
    clipped = {}
    for source, names in readers.items():
        best = int(sums[source].argmin())
        errors = np.sqrt(sums[source] / counts[source])
        former = thresholds[names[0]]
        for name in names if best else ():
            clipped[name] = bundles.Clipped(
                former=former,
                threshold=former * FACTORS[best],
                former_error=float(errors[0]),
                error=float(errors[best]),
            )
    return clipped
