"""Programs with quantize and dequantize operators (ONNX format), as Paddle's quantization and
PaddleSlim's save them."""

from __future__ import annotations

from typing import Mapping

import numpy as np

from fleetbert.graph import program as programs
from fleetbert.graph.program import OpDesc, Parameters, ProgramDesc, VarType
from fleetbert.graph.weights import SCALE, Quantized

QUANTIZERS = ("quantize_linear", "dequantize_linear")
# The operator that PaddlePaddle exports a Linear as.
LINEAR = "matmul_v2"
# After the name of a variable: its integers, and what they stand for.
ROUNDED, WIDENED = ".quantized", ".quantized.dequantized"
ZERO_POINT = ".quantized@zero_point"


def read(program: ProgramDesc, arrays: Parameters) -> tuple[dict[str, float], dict[str, Quantized]]:
    """Thresholds (the magnitude that becomes 127) of activations, and quantized weights, by name;
    arrays: the stored tensors."""
    thresholds, quantized = {}, {}
    for op in program.blocks[0].ops:
        if op.type not in QUANTIZERS:
            continue
        name = programs.argument(op.inputs, "X")
        scale = arrays[programs.argument(op.inputs, "Scale")].astype(np.float32).reshape(-1)
        if name in arrays:
            stored = arrays[name]
            # One for each index of the axis, or one for all.
            axis = programs.attribute(op, "quant_axis").i
            axis = max(axis, 0) if len(scale) > 1 else stored.ndim - 1
            scales = np.ascontiguousarray(np.broadcast_to(scale, stored.shape[axis : axis + 1]))
            quantized[name] = Quantized(stored.astype(np.int8), scales, axis)
        elif op.type == "quantize_linear":
            thresholds[name] = float(scale[0])
    return thresholds, quantized


def insert(
    program: ProgramDesc, thresholds: Mapping[str, float], weights: Mapping[str, Quantized]
) -> tuple[ProgramDesc, Parameters]:
    """The unfused float32 program with Linear layers in int8, and the scales that it stores.

    thresholds: the magnitude of a layer's input that becomes 127, by its weight [K, N], of which
    there are integers in `weights`, with N scales (axis 1).
    """
    program = programs.copy(program)
    block = program.blocks[0]
    stored: dict[str, np.ndarray] = {}
    ops: list[OpDesc] = []
    added: set[str] = set()

    def add(kind: str, source: str, target: str, of: str, axis: int) -> None:
        """of: the variable whose scale it is."""
        slots = {"X": source, "Scale": of + SCALE, "ZeroPoint": of + ZERO_POINT}
        ops.append(programs.operator(kind, slots, {"Y": target}, quant_axis=axis, bit_length=8))
        programs.add_variable(block, of, target).persistable = False

    def store(of: str, scales: np.ndarray) -> None:
        stored[of + SCALE], stored[of + ZERO_POINT] = scales, np.zeros(len(scales), np.int32)
        for name, data_type in ((of + SCALE, VarType.FP32), (of + ZERO_POINT, VarType.INT32)):
            programs.new_variable(block, name, data_type, scales.shape)
            programs.variable(block, name).persistable = True

    for op in list(block.ops):
        weight = programs.argument(op.inputs, "Y") if op.type == LINEAR else ""
        if weight in thresholds:
            source = programs.argument(op.inputs, "X")
            if source not in added:
                added.add(source)
                store(source, np.array([thresholds[weight]], np.float32))
                add("quantize_linear", source, source + ROUNDED, source, -1)
                add("dequantize_linear", source + ROUNDED, source + WIDENED, source, -1)
            store(weight, weights[weight].scales)
            add("dequantize_linear", weight, weight + WIDENED, weight, weights[weight].axis)
            programs.tensor(block, weight).data_type = VarType.INT8
            programs.rename(op.inputs, {name: name + WIDENED for name in (source, weight)})
        ops.append(op)
    programs.replace_ops(block, ops)
    return program, stored


def in_float32(program: ProgramDesc) -> ProgramDesc:
    """The program with all its Linear layers in float32."""
    program = programs.copy(program)
    block = program.blocks[0]
    stored = set(programs.parameter_names(program))
    makers = {name: op for op in block.ops for name in programs.written_by(op)}

    def source(name: str) -> str:
        """What a variable was before quantize and dequantize operators."""
        while name in makers and makers[name].type in QUANTIZERS:
            name = programs.argument(makers[name].inputs, "X")
        return name

    for op in block.ops:
        before = {name: source(name) for name in programs.read_by(op)}
        programs.rename(op.inputs, before)
        for name in stored.intersection(before.values()) - before.keys():
            programs.tensor(block, name).data_type = VarType.FP32
    # First the dequantize operators that nothing reads any more, then the quantize operators.
    for _ in range(2):
        read = {name for op in block.ops for name in programs.read_by(op)}
        kept = [
            op
            for op in block.ops
            if op.type not in QUANTIZERS or programs.argument(op.outputs, "Y") in read
        ]
        programs.replace_ops(block, kept)
    programs.keep_variables(block, {name for op in block.ops for name in programs.arguments(op)})
    return program
