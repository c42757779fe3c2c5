"""A fused float32 program → one that computes its Linear layers in int8 through oneDNN.

Paddle's own int8 passes take the scales of weights along the wrong axis (21 to 40 % error
in square matrices) and quantize additions that cannot bear it. So they are not used: the float32
passes fuse the program (`graph.fuse`), and `to_int8` writes quantize operators and scales into it.

What one int8 layer computes (Jacob et al. 2018, section 2, with symmetric scales), for an input
threshold t and the weight's channel scales s [N], is

    x8 = clip(rint(x * 127 / t), -128, 127)                 int8  [..., K]
    y  = (x8 @ w8) * (t / 127) * (s / 127) + bias           float32 [..., N], w8 int8 [K, N]

and where the next reader of y is such a layer too, y leaves as its x8.
"""

from __future__ import annotations

from typing import Mapping

import numpy as np

from fleetbert.graph import program as programs
from fleetbert.graph.first_token import FIRST
from fleetbert.graph.program import OpDesc, ProgramDesc, VarType
from fleetbert.graph.weights import Quantized, largest_integer

INT8 = "@int8"  # after the name of a variable: the same in int8


def linear_layers(program: ProgramDesc) -> list[OpDesc]:
    """The fc operators, one a Linear, in the order in which they run."""
    return [op for op in program.blocks[0].ops if op.type == "fc"]


def inputs(program: ProgramDesc) -> dict[str, str]:
    """The variable that each Linear reads, by its weight."""
    return {
        programs.argument(op.inputs, "W"): programs.argument(op.inputs, "Input")
        for op in linear_layers(program)
    }


def biases(program: ProgramDesc) -> dict[str, str]:
    """The bias of each Linear that has one, by its weight."""
    return {
        programs.argument(op.inputs, "W"): slot.arguments[0]
        for op in linear_layers(program)
        for slot in op.inputs
        if slot.parameter == "Bias" and slot.arguments
    }


def to_int8(
    program: ProgramDesc, thresholds: Mapping[str, float], weights: Mapping[str, Quantized]
) -> ProgramDesc:
    """The program with every fc in int8 whose input has a threshold and whose weight is quantized.

    thresholds: for inputs of layers, the magnitude that becomes 127; larger ones are cut off.
    weights: int8 [K, N] with N scales (axis 1).
    """
    program = programs.copy(program)
    block = program.blocks[0]
    thresholds = {**thresholds, **{name + FIRST: value for name, value in thresholds.items()}}

    def is_int8(op: OpDesc) -> bool:
        return (
            op.type == "fc"
            and programs.argument(op.inputs, "Input") in thresholds
            and programs.argument(op.inputs, "W") in weights
        )

    ops: list[OpDesc] = []
    as_int8: dict[str, str] = {}  # variables that are there as int8, and under which name
    for op in list(block.ops):
        if is_int8(op):
            source = programs.argument(op.inputs, "Input")
            weight = programs.argument(op.inputs, "W")
            target = programs.argument(op.outputs, "Out")
            if source not in as_int8:
                as_int8[source] = source + INT8
                scale = _steps(thresholds[source])
                ops.append(programs.quantize(source, source + INT8, scale, "int8"))
                programs.add_variable(block, source, source + INT8)
                programs.tensor(block, source + INT8).data_type = VarType.INT8
            programs.set_argument(op.inputs, "Input", as_int8[source])
            inner = all(is_int8(reader) for reader in programs.consumers(block, target))
            programs.set_attributes(
                op,
                mkldnn_data_type="int8",
                Scale_in=_steps(thresholds[source]),
                Scale_weights=[_steps(float(scale)) for scale in weights[weight].scales],
                force_fp32_output=not inner,
                Scale_out=_steps(thresholds[target]) if inner else 1.0,
            )
            if inner:
                as_int8[target] = target
                programs.tensor(block, target).data_type = VarType.INT8
        ops.append(op)
    programs.replace_ops(block, ops)
    return program


def weight_steps(cpuinfo: str) -> int:
    """The integer that a channel's largest weight becomes on a processor (`environment.cpuinfo`).

    Without VNNI oneDNN 3.2.1 multiplies bytes by `vpmaddubsw`, which adds two products in 16 bits
    and cuts off what is larger: 4 % of a layer's outputs were wrong, by up to a fifth of the
    largest. With weights of up to 64, 2 * 255 * 64 just fits (Intel's guide on int8 without VNNI
    advises the same). They lose one of 8 bits for it.
    """
    return largest_integer(8) if "avx512_vnni" in cpuinfo.split() else 64


def limit_weights(program: ProgramDesc, steps: int) -> ProgramDesc:
    """The program whose int8 layers round their weights to at most `steps` (of `weight_steps`)."""
    program = programs.copy(program)
    for op in linear_layers(program):
        if programs.has_attribute(op, "Scale_weights"):
            scales = programs.attribute(op, "Scale_weights").floats
            programs.set_attributes(
                op, Scale_weights=[s * steps / largest_integer(8) for s in scales]
            )
    return program


def round_input(x: np.ndarray, threshold: float) -> np.ndarray:
    """The float32 values that the layer computes with for its input x: x8 * t / 127."""
    step = np.float32(threshold / largest_integer(8))
    y = x / step  # one array: new ones cost as much as what is computed in them
    np.clip(np.rint(y, out=y), -128, 127, out=y)
    y *= step
    return y


def simulate(x: np.ndarray, threshold: float, weight: Quantized) -> np.ndarray:
    """The int8 layer without its bias, in NumPy: x float32 [..., K] → float32 [..., N]; see this
    module's text."""
    x8 = np.clip(np.rint(x.astype(np.float32) * np.float32(_steps(threshold))), -128, 127)
    product = x8 @ weight.integers.astype(np.float32)  # exact up to 2**24
    scales = weight.scales.astype(np.float64) / largest_integer(8)
    return (product * (threshold / largest_integer(8)) * scales).astype(np.float32)


def _steps(threshold: float) -> float:
    return largest_integer(8) / threshold
