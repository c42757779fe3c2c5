"""Outliers: the input of an int8 layer may be cut below the largest value that calibration found.

A few values far above all others make the steps of the others coarse. So smaller thresholds are
tried for each input, on texts without looking at labels, and the one with the least error stays:
the squared change of the outputs of the layers that read it, of each token in parts of its own
outputs' squares, in the mean over tokens. Unlike the plain mean squared error that counts a token
whose values are a hundred times as large as one token, and it needs few texts: on halves of SST-2's
dev texts it chooses nearly the same thresholds, where a greedy search by the logits' error only
improves the half it was made on.
"""

from __future__ import annotations

from typing import Sequence

import numpy as np

from fleetbert import bundle as bundles
from fleetbert.compress.adaround import as_int8
from fleetbert.compress.calibrate import Calibration
from fleetbert.compress.sensitivity import Layers
from fleetbert.graph.weights import widen

# Of selection.data; 80 texts choose as 436 do.
TEXTS = 80
# What a calibrated threshold is multiplied with.
FACTORS = (1.0, 0.9, 0.8, 0.65, 0.5, 0.35, 0.2)


def choose(
    found: Calibration,
    layers: Layers,
    batches: Sequence[dict[str, np.ndarray]],
    thresholds: dict[str, float],
    pad_id: int,
) -> dict[str, bundles.Clipped]:
    """The layers whose input is better cut, by weight; padding does not count."""
    readers: dict[str, list[str]] = {}  # by input: q, k and v read one
    for name in thresholds:
        readers.setdefault(layers.inputs[name], []).append(name)
    sums = {source: np.zeros(len(FACTORS)) for source in readers}
    counts = dict.fromkeys(readers, 0)
    for batch, inputs in zip(batches, layers.run(batches)):
        real = (batch["input_ids"] != pad_id).ravel()
        for source, names in readers.items():
            x = inputs[names[0]]
            if len(x) == len(real):  # else [CLS] alone
                x = x[real]
            counts[source] += len(x) * len(names)
            tried = [as_int8(x, thresholds[names[0]] * factor) for factor in FACTORS]
            for name in names:
                exact, weight = x @ layers.parameters[name], widen(found.weights[name])
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


def relative_errors(y: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Of each token's outputs [tokens, N]: squared change over squared size, [tokens]."""
    found: np.ndarray = np.square(y - exact).sum(1) / np.maximum(np.square(exact).sum(1), 1e-12)
    return found
