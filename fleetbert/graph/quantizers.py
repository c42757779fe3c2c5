"""Programs with quantize and dequantize operators (ONNX format), as Paddle's quantization and
PaddleSlim's save them."""

from __future__ import annotations

import numpy as np

from fleetbert.graph import program as programs
from fleetbert.graph.program import Parameters, ProgramDesc, VarType
from fleetbert.graph.weights import Quantized

QUANTIZERS = ("quantize_linear", "dequantize_linear")
# The operator that PaddlePaddle exports a Linear as.
LINEAR = "matmul_v2"


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
