"""The files of a quantized variant, from a bundle's float32 program.

x86.pdmodel          what Paddle Inference runs on a server
model.pdmodel        the same in the form that Paddle's converters (Paddle Lite) read
weights.safetensors  the tensors of both, integers where they are quantized (`graph.weights`)
"""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import Any, NamedTuple, Sequence

import numpy as np
import paddle

import fleetbert
from fleetbert import bundle as bundles
from fleetbert.compress import calibrate, dynamic
from fleetbert.errors import UserError
from fleetbert.graph import int8, weights
from fleetbert.graph import program as programs
from fleetbert.graph.first_token import first_token_only
from fleetbert.graph.fuse import Fused, fuse
from fleetbert.graph.transposes import merge_transposes
from fleetbert.graph.weights import Quantized


def write_dynamic(
    source: Path, folder: Path, bits: int = 8, skip: Sequence[str] = ()
) -> bundles.Variant:
    """Quantize the weights of the float32 program in `source` into `folder`."""
    arrays = _parameters(source)
    found = dynamic.quantize_weights(source, bits, matching(skip, arrays))
    programs.write(folder / "model.pdmodel", found.program)
    programs.write(folder / "x86.pdmodel", programs.read(source / "model.pdmodel"))
    weights.save(folder, found.weights, found.others)
    return bundles.WeightOnlyVariant(
        name=f"int{bits}-dynamic",
        runs_on=["x86", "gpu", "armv8"],
        versions=versions(),
        bits=bits,
        weight_errors=weight_errors(found.weights, arrays),
    )


class Prepared(NamedTuple):
    """A float32 program, calibrated and fused once; any mix of float32 and int8 comes from it.

    arrays: the float32 tensors; left: weights of layers that stay float32 in every mix; method:
    how it was calibrated, for the manifest.
    """

    arrays: dict[str, np.ndarray]
    left: list[str]
    found: calibrate.Calibration
    fused: Fused
    method: dict[str, Any]


def prepare(
    source: Path, left: list[str], found: calibrate.Calibration, method: dict[str, Any]
) -> Prepared:
    """The float32 program in `source` with its calibration `found`, which left out `left`."""
    fused = fuse(source)
    fused = fused._replace(program=merge_transposes(fused.program))
    return Prepared(_parameters(source), left, found, fused, method)


def prepare_static(
    source: Path,
    batches: calibrate.Batches,
    *,
    algorithm: str = "avg",
    skip: Sequence[str] = (),
) -> Prepared:
    """Calibrate the float32 program in `source`.

    `skip` names Linear weights that stay float32 (* matches anything); the one that gives the
    logits always does, for it costs nothing.
    """
    left = float32_layers(programs.read(source / "model.pdmodel"), skip)
    found = calibrate.calibrate(source, batches, algorithm, left)
    method = {"method": "static", "algorithm": algorithm, "rounding": "round"}
    return prepare(source, left, found, method)


def write_qat(
    source: Path,
    folder: Path,
    batches: calibrate.Batches,
    thresholds: dict[str, float],
    skip: Sequence[str] = (),
) -> bundles.Variant:
    """Write the trained program in `source` as an int8 one into `folder`.

    thresholds: of the inputs, by the weight that they are multiplied with; from training. Paddle's
    calibration makes the program for converters around them, and takes a few batches for it.
    """
    left = float32_layers(programs.read(source / "model.pdmodel"), skip)
    found = calibrate.calibrate(source, batches, "abs_max", left)
    found = calibrate.with_thresholds(found, source, thresholds)
    return write_mix(prepare(source, left, found, {"method": "qat"}), folder)


def write_mix(
    prepared: Prepared, folder: Path, float32: Sequence[str] = (), converter: bool = True
) -> bundles.Variant:
    """Write an int8 program into `folder` whose layers with the weights `float32` stay as they
    were, beside those that stay in every mix.

    converter: write model.pdmodel too, which only converters read.
    """
    found, fused = prepared.found, prepared.fused
    quantized = {name: found.weights[name] for name in found.weights if name not in float32}
    thresholds = {n: value for n, value in input_thresholds(prepared).items() if n in quantized}
    program = int8.to_int8(first_token_only(fused.program), found.thresholds, quantized)
    for name in programs.embedding_tables(program):
        quantized[name] = weights.quantize(prepared.arrays[name], 0)
    programs.write(folder / "x86.pdmodel", program)
    if converter:
        programs.write(folder / "model.pdmodel", calibrate.in_float32(found, float32))
    others = {**found.parameters, **fused.parameters}
    for name in quantized:
        others.pop(name)
        others.pop(name + weights.SCALE, None)
    for name in float32:
        others.pop(name + weights.SCALE, None)
    weights.save(folder, quantized, others)
    return bundles.Int8Variant(
        name=f"int8-{prepared.method['method']}",
        runs_on=["x86", "armv8"],
        versions=versions(),
        float32_layers=[*prepared.left, *float32],
        thresholds=thresholds,
        weight_errors=weight_errors(quantized, prepared.arrays),
        **prepared.method,
    )


def input_thresholds(prepared: Prepared) -> dict[str, float]:
    """The thresholds of the inputs of all layers that may be int8, by the layer's weight."""
    return {
        programs.argument(op.inputs, "W"): prepared.found.thresholds[
            programs.argument(op.inputs, "Input")
        ]
        for op in int8.linear_layers(prepared.fused.program)
        if programs.argument(op.inputs, "W") in prepared.found.weights
    }


def float32_layers(program: programs.ProgramDesc, skip: Sequence[str]) -> list[str]:
    """The Linear weights of an unfused program that stay float32: those in `skip`, and the last,
    which gives the logits."""
    linear = linear_weights(program)
    left = [*matching(skip, linear), linear[-1]]
    if set(left) == set(linear):
        raise UserError("skip: no layer is left to quantize; name fewer of them")
    return left


def linear_weights(program: programs.ProgramDesc) -> list[str]:
    """The weights of an unfused program's Linear layers, in the order in which they are used."""
    stored = set(programs.parameter_names(program))
    names = [
        programs.argument(op.inputs, "Y")
        for op in program.blocks[0].ops
        if op.type in (calibrate.LINEAR, "mul")
    ]
    return [name for name in names if name in stored]


def matching(patterns: Sequence[str], names: Any) -> list[str]:
    """The names that match a pattern; UserError for a pattern that matches none."""
    found: list[str] = []
    for pattern in patterns:
        hits = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
        if not hits:
            shown = ", ".join(sorted(names)[:8])
            raise UserError(f"skip: {pattern!r} matches no weight; there are {shown}, ...")
        found += hits
    return found


def versions() -> dict[str, str]:
    return {"fleetbert": fleetbert.__version__, "paddlepaddle": paddle.__version__}


def _parameters(source: Path) -> dict[str, np.ndarray]:
    program = programs.read(source / "model.pdmodel")
    return programs.read_parameters(program, source / "model.pdiparams")


def weight_errors(
    quantized: dict[str, Quantized], arrays: dict[str, np.ndarray]
) -> dict[str, float]:
    """Relative error (Frobenius norm) of each quantized weight."""
    return {
        name: float(
            np.linalg.norm(weights.widen(found) - arrays[name]) / np.linalg.norm(arrays[name])
        )
        for name, found in quantized.items()
    }
