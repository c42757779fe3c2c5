"""Weights as integers, activations as they are: no data needed, smaller on disk.

Paddle's WeightQuantization takes `mul` only, so Linear layers become that first (`graph.mul`), and
no tables: both are ours. PaddleSlim's `quant_post_dynamic` calls it and nothing else.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path
from typing import NamedTuple, Sequence

import numpy as np
from paddle.static.quantization import WeightQuantization

from fleetbert import bundle as bundles
from fleetbert.compat.static_graph import static_graph, weight_scales
from fleetbert.compression.work import Ready, Source, Work, matching, weight_errors
from fleetbert.export.program import versions
from fleetbert.graph import program as programs
from fleetbert.graph import weights
from fleetbert.graph.mul import to_mul
from fleetbert.graph.program import ProgramDesc
from fleetbert.graph.weights import Quantized, largest_integer, quantize


def prepare(work: Work) -> Ready:
    """Make integers of the source's weights but those that `skip` names."""
    source, bits = work.source, work.job.bits
    made = quantize_weights(source, bits, matching(work.job.skip, source.arrays))

    def write(folder: Path) -> bundles.Variant:
        """model.pdmodel has the integers; x86.pdmodel wants the weights widened to float32."""
        programs.write(folder / "model.pdmodel", made.program)
        programs.write(folder / "x86.pdmodel", source.program)
        weights.save(folder, made.weights, made.others)
        return bundles.WeightOnlyVariant(
            name=f"int{bits}-dynamic",
            runs_on=["x86", "gpu", "armv8"],
            versions=versions(),
            bits=bits,
            weight_errors=weight_errors(made.weights, source.arrays),
        )

    return Ready(work.source, write)


class Dynamic(NamedTuple):
    """program: with integer weights in `mul`, as Paddle Lite reads it; weights: by name; others:
    the tensors that stay float32."""

    program: ProgramDesc
    weights: dict[str, Quantized]
    others: dict[str, np.ndarray]


def quantize_weights(origin: Source, bits: int = 8, skip: Sequence[str] = ()) -> Dynamic:
    """Make integers of the Linear weights and of the embedding tables of a float32 program.

    A Linear has a scale for each output, a table for each row. `skip` names weights to leave out.
    """
    program = to_mul(origin.program, origin.arrays, skip)
    with tempfile.TemporaryDirectory() as temporary:
        target = Path(temporary) / "integers"
        source = programs.write_model(Path(temporary) / "mul", program, origin.arrays)
        # It prints each operator's name.
        with static_graph(), contextlib.redirect_stdout(io.StringIO()):
            WeightQuantization(
                str(source), "model.pdmodel", "model.pdiparams"
            ).quantize_weight_to_int(
                str(target),
                "model.pdmodel",
                "model.pdiparams",
                quantizable_op_type=["mul"],
                weight_bits=bits,
                weight_quantize_type="channel_wise_abs_max",
            )
        saved = target / "quantized_model" / "model.pdmodel"
        program = programs.read(saved)
        arrays = programs.read_parameters(program, saved.with_suffix(".pdiparams"))
    integers = {}
    for op in program.blocks[0].ops:
        name = programs.argument(op.inputs, "Y") if op.type == "mul" else ""
        if name in arrays and arrays[name].dtype != np.float32:
            steps = programs.attribute(op, f"{name}_quant_scale").floats
            scales = weight_scales(steps, largest_integer(bits), origin.arrays[name])
            integers[name] = Quantized(arrays.pop(name), scales, 1)
    for name in programs.embedding_tables(program):
        if name not in skip:
            integers[name] = quantize(arrays.pop(name), 0, bits)
    return Dynamic(program, integers, arrays)
