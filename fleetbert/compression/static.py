"""Whole layers in int8: activations get thresholds from texts, weights a scale for each output.

x86.pdmodel          what Paddle Inference runs on a server
model.pdmodel        the same in the form that Paddle's converters (Paddle Lite) read
weights.safetensors  the tensors of both, integers where they are quantized (`graph.weights`)
"""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Mapping, NamedTuple, Sequence

import numpy as np

from fleetbert import bundle as bundles
from fleetbert.compression import calibrate, sensitivity, split
from fleetbert.compression.calibrate import Calibration
from fleetbert.compression.sensitivity import Layers
from fleetbert.compression.texts import Feeds
from fleetbert.compression.work import Ready, Source, Work, weight_errors
from fleetbert.export.program import versions
from fleetbert.graph import int8, weights
from fleetbert.graph import program as programs
from fleetbert.graph import split as graph
from fleetbert.graph.first_token import first_token_only
from fleetbert.graph.fuse import Fused, merge_transposes

log = logging.getLogger(__name__)


class Prepared(NamedTuple):
    """A calibrated float32 program.

    arrays: the float32 tensors; left: weights of layers that stay float32; fused: the program for
    x86; variant: what the manifest will say of how it was calibrated; corrections: by weight, of
    the outputs of its layer, [N].
    """

    arrays: dict[str, np.ndarray]
    left: list[str]
    calibration: Calibration
    fused: Fused
    variant: bundles.Int8Variant
    corrections: Mapping[str, np.ndarray] = {}

    def telling(self, **fields: object) -> Prepared:
        """A copy with these fields of the variant."""
        return self._replace(variant=self.variant.model_copy(update=fields))


def prepare(work: Work) -> Ready:
    """Calibrate all layers for int8 but those that `skip` names."""
    return Ready(work.source, functools.partial(write, calibrated(work)))


def calibrated(work: Work) -> Prepared:
    """The source: thresholds from texts, then split and corrected as the job says."""
    settings, source = work.job.calibration, work.source
    batches = work.calibration_batches
    log.info(f"calibrating with {settings.algorithm}: {len(batches)} batches")
    prepared = of_texts(source, batches, settings.algorithm, work.job.skip)
    prepared = prepared.telling(smoothed=work.smoothed)
    if settings.split == "auto":
        log.info("split: outlier channels are tried in pieces")
        prepared = in_pieces(prepared, source, batches, work.largest)
    if settings.correct_bias:
        prepared = corrected(prepared, source.layers, sensitivity.spread(batches))
    return prepared


def of_texts(
    source: Source, batches: Sequence[Feeds], algorithm: str = "avg", skip: Sequence[str] = ()
) -> Prepared:
    """Calibrate with `batches`; algorithm as of `calibrate`, skip as of `float32_layers`."""
    left = source.float32_layers(skip)
    calibration = calibrate.calibrate(source.folder, batches, algorithm, left)
    variant = bundles.Int8Variant(name="int8-static", algorithm=algorithm, rounding="round")
    return of_calibration(source, left, calibration, variant)


def of_calibration(
    source: Source, left: list[str], calibration: Calibration, variant: bundles.Int8Variant
) -> Prepared:
    """The source with its calibration, which left out `left`."""
    fused = source.fused._replace(program=merge_transposes(source.fused.program))
    return Prepared(source.arrays, left, calibration, fused, variant)


def corrected(prepared: Prepared, layers: Layers, batches: Sequence[Feeds]) -> Prepared:
    """Subtract the mean change of each int8 layer's outputs from its bias (Nagel et al. 2019,
    "Data-Free Quantization", section 4.2, by texts instead of statistics of norms)."""
    thresholds = input_thresholds(prepared)
    pieces = split_pieces(prepared.variant.split)
    sums: dict[str, np.ndarray] = {}
    tokens = dict.fromkeys(thresholds, 0)
    for inputs in layers.run(batches):
        for name, threshold in thresholds.items():
            x, rounded = inputs[name], prepared.calibration.weights[name]
            change = x.sum(0, dtype=np.float64) @ layers.parameters[name]
            if name in pieces:
                x = layers.with_pieces(inputs, name, pieces[name])
                rounded = graph.widen_second(rounded, pieces[name])
            x8 = int8.round_input(x, threshold)
            change -= x8.sum(0, dtype=np.float64) @ weights.widen(rounded)
            sums[name] = sums.get(name, 0) + change
            tokens[name] += len(x)
    corrections = {name: (total / tokens[name]).astype(np.float32) for name, total in sums.items()}
    return prepared._replace(corrections=corrections).telling(bias_corrected=True)


def in_pieces(
    prepared: Prepared,
    source: Source,
    batches: Sequence[Feeds],
    largest: Mapping[str, np.ndarray] | None = None,
) -> Prepared:
    """Split units into pieces where that lessens the error; largest: see `split.choose`."""
    thresholds = input_thresholds(prepared)
    weights = prepared.calibration.weights
    chosen = split.choose(weights, source.layers, batches, thresholds, largest)
    for name, entry in chosen.items():
        log.info(
            f"split: {name}: inputs cut at {entry.threshold:.3g} instead of {entry.former:.3g} "
            f"with {len(entry.units)} pieces, token error {entry.error:.2%} instead of "
            f"{entry.former_error:.2%}"
        )
    lower = {name: entry.threshold for name, entry in chosen.items()}
    calibration = calibrate.with_thresholds(prepared.calibration, source.program, lower)
    return prepared._replace(calibration=calibration).telling(split=chosen)


def split_pieces(splits: Mapping[str, bundles.Split]) -> dict[str, graph.Pieces]:
    """The pieces by the weight of the layer that reads them."""
    return {name: graph.pieces(entry.units, entry.threshold) for name, entry in splits.items()}


def write(prepared: Prepared, folder: Path) -> bundles.Int8Variant:
    """Write the int8 program into `folder`."""
    calibration, fused = prepared.calibration, prepared.fused
    quantized = dict(calibration.weights)
    for name in programs.embedding_tables(fused.program):
        quantized[name] = weights.quantize(prepared.arrays[name], 0)
    errors = weight_errors(quantized, prepared.arrays)
    others = {**calibration.parameters, **fused.parameters}
    biases = int8.biases(fused.program)
    for name, correction in prepared.corrections.items():
        bias = biases[name]
        others[bias] = (others[bias] + correction).astype(np.float32)
    widened = {}
    pairs = graph.pairs(fused.program)
    for name, some in split_pieces(prepared.variant.split).items():
        first, bias, _ = pairs[name]
        quantized[first] = graph.widen_first(quantized[first], some)
        quantized[name] = graph.widen_second(quantized[name], some)
        others[bias] = np.concatenate([others[bias], others[bias][some.units] - some.lower])
        widened[name] = first
    arrays = {**others, **{name: weight.integers for name, weight in quantized.items()}}
    program = int8.to_int8(first_token_only(fused.program), calibration.thresholds, quantized)
    programs.write(folder / "x86.pdmodel", graph.fit(program, arrays, widened))
    for first in widened.values():
        arrays[first + weights.SCALE] = quantized[first].scales
    programs.write(folder / "model.pdmodel", graph.fit(calibration.program, arrays, widened))
    for name in quantized:
        others.pop(name)
        others.pop(name + weights.SCALE, None)
    weights.save(folder, quantized, others)
    return prepared.variant.model_copy(
        update={
            "runs_on": ["x86"],  # ARM has no oneDNN; model.pdmodel is for converters
            "versions": versions(),
            "float32_layers": prepared.left,
            "thresholds": input_thresholds(prepared),
            "weight_errors": errors,
        }
    )


def input_thresholds(prepared: Prepared) -> dict[str, float]:
    """The thresholds of the inputs of all layers that may be int8, by the layer's weight."""
    calibration = prepared.calibration
    return {
        weight: calibration.thresholds[name]
        for weight, name in int8.inputs(prepared.fused.program).items()
        if weight in calibration.weights
    }
