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
from fleetbert.compression import split
from fleetbert.compression.observed import Observed
from fleetbert.compression.sensitivity import Layers
from fleetbert.compression.work import Ready, Source, Work, weight_errors
from fleetbert.export.program import versions
from fleetbert.graph import int8, quantizers, weights
from fleetbert.graph import program as programs
from fleetbert.graph import split as graph
from fleetbert.graph.first_token import first_token_only
from fleetbert.graph.fuse import merge_transposes
from fleetbert.graph.weights import Quantized

log = logging.getLogger(__name__)


class Prepared(NamedTuple):
    """A calibrated float32 program.

    left: weights of layers that stay float32; thresholds: of the inputs of the others, by weight;
    weights: their integers; variant: what the manifest will say of how it was calibrated;
    corrections: by weight, of the outputs of its layer, [N].
    """

    source: Source
    left: list[str]
    thresholds: dict[str, float]
    weights: dict[str, Quantized]
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
    settings, source, observed = work.job.calibration, work.source, work.observed
    prepared = of_texts(source, observed, settings.algorithm, work.job.skip)
    prepared = prepared.telling(smoothed=work.smoothed)
    if settings.split == "auto":
        log.info("split: outlier channels are tried in pieces")
        prepared = in_pieces(prepared, observed)
    if settings.correct_bias:
        prepared = corrected(prepared, source.layers, observed)
    return prepared


def of_texts(
    source: Source, observed: Observed, algorithm: str = "avg", skip: Sequence[str] = ()
) -> Prepared:
    """Calibrate by the texts that were observed; algorithm: as of `Observed.threshold`; skip: as of
    `float32_layers`."""
    left = source.float32_layers(skip)
    names = [name for name in source.layers.inputs if name not in left]
    thresholds = {name: observed.threshold(name, algorithm) for name in names}
    variant = bundles.Int8Variant(name="int8-static", algorithm=algorithm, rounding="round")
    return rounded(source, left, thresholds, variant)


def rounded(
    source: Source, left: list[str], thresholds: dict[str, float], variant: bundles.Int8Variant
) -> Prepared:
    """The source with weights rounded to the nearest integer, of all layers with a threshold."""
    integers = {name: weights.quantize(source.arrays[name], 1) for name in thresholds}
    return Prepared(source, left, thresholds, integers, variant)


def corrected(prepared: Prepared, layers: Layers, observed: Observed) -> Prepared:
    """Subtract the mean change of each int8 layer's outputs from its bias (Nagel et al. 2019,
    "Data-Free Quantization", section 4.2, by texts instead of statistics of norms)."""
    thresholds = prepared.thresholds
    pieces = split_pieces(prepared.variant.split)
    sums: dict[str, np.ndarray] = {}
    tokens = dict.fromkeys(thresholds, 0)
    for inputs in observed.few:
        for name, threshold in thresholds.items():
            x, rounded = inputs[name], prepared.weights[name]
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


def in_pieces(prepared: Prepared, observed: Observed) -> Prepared:
    """Split units into pieces where that lessens the error."""
    layers = prepared.source.layers
    chosen = split.choose(prepared.weights, layers, observed, prepared.thresholds)
    for name, entry in chosen.items():
        log.info(
            f"split: {name}: inputs cut at {entry.threshold:.3g} instead of {entry.former:.3g} "
            f"with {len(entry.units)} pieces, token error {entry.error:.2%} instead of "
            f"{entry.former_error:.2%}"
        )
    lower = {name: entry.threshold for name, entry in chosen.items()}
    return prepared._replace(thresholds={**prepared.thresholds, **lower}).telling(split=chosen)


def split_pieces(splits: Mapping[str, bundles.Split]) -> dict[str, graph.Pieces]:
    """The pieces by the weight of the layer that reads them."""
    return {name: graph.pieces(entry.units, entry.threshold) for name, entry in splits.items()}


def write(prepared: Prepared, folder: Path) -> bundles.Int8Variant:
    """Write the int8 program into `folder`."""
    source, thresholds = prepared.source, prepared.thresholds
    fused = merge_transposes(source.fused.program)
    quantized = dict(prepared.weights)
    for name in programs.embedding_tables(fused):
        quantized[name] = weights.quantize(source.arrays[name], 0)
    errors = weight_errors(quantized, source.arrays)
    others = {**source.arrays, **source.fused.parameters}
    biases = int8.biases(fused)
    for name, correction in prepared.corrections.items():
        bias = biases[name]
        others[bias] = (others[bias] + correction).astype(np.float32)
    widened = {}
    pairs = graph.pairs(fused)
    for name, some in split_pieces(prepared.variant.split).items():
        first, bias, _ = pairs[name]
        quantized[first] = graph.widen_first(quantized[first], some)
        quantized[name] = graph.widen_second(quantized[name], some)
        others[bias] = np.concatenate([others[bias], others[bias][some.units] - some.lower])
        widened[name] = first
    arrays = {**others, **{name: weight.integers for name, weight in quantized.items()}}
    inputs = int8.inputs(fused)
    by_input = {inputs[name]: threshold for name, threshold in thresholds.items()}
    program = int8.to_int8(first_token_only(fused), by_input, quantized)
    programs.write(folder / "x86.pdmodel", graph.fit(program, arrays, widened))
    unfused = graph.fit(source.program, arrays, widened)
    unfused, scales = quantizers.insert(unfused, thresholds, quantized)
    programs.write(folder / "model.pdmodel", unfused)
    for name in quantized:
        del others[name]
    weights.save(folder, quantized, {**others, **scales})
    return prepared.variant.model_copy(
        update={
            "runs_on": ["x86"],  # ARM has no oneDNN; model.pdmodel is for converters
            "versions": versions(),
            "float32_layers": prepared.left,
            "thresholds": thresholds,
            "weight_errors": errors,
        }
    )
