"""A float32 program → one that computes its Linear layers in int8 through oneDNN.

Paddle 2.6.2's own int8 passes take the scales of weights along the wrong axis (21 to 40 % error
in square matrices) and quantize additions that cannot bear it. So they are not used: the float32
passes fuse the program (`fused`), and `to_int8` writes quantize operators and scales into it.

What one int8 layer computes (Jacob et al. 2018, section 2, with symmetric scales), for an input
threshold t and the weight's channel scales s [N], is

    x8 = clip(rint(x * 127 / t), -128, 127)                 int8  [..., K]
    y  = (x8 @ w8) * (t / 127) * (s / 127) + bias           float32 [..., N], w8 int8 [K, N]

and where the next reader of y is such a layer too, y leaves as its x8.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fleetbert.compat import paddle_inference
from fleetbert.graph import program as programs
from fleetbert.graph.program import OpDesc, ProgramDesc, VarType
from fleetbert.graph.weights import Quantized, largest

# How `to_int8` and `first_token_only` call what they add.
INT8 = "@int8"
FIRST = "@first"


class Fused(NamedTuple):
    """A program after Paddle's float32 oneDNN passes, and its parameters by name."""

    program: ProgramDesc
    parameters: dict[str, np.ndarray]


def fused(folder: Path) -> Fused:
    """Run Paddle's float32 passes over the program in `folder` (model.pdmodel, .pdiparams).

    Afterwards a Linear is one `fc` with its bias and GELU, and attention is two `fused_matmul`.
    """
    inference = paddle_inference.import_inference()
    with tempfile.TemporaryDirectory() as temporary:
        config = inference.Config(str(folder / "model.pdmodel"), str(folder / "model.pdiparams"))
        config.disable_gpu()
        config.disable_glog_info()
        paddle_inference.use_onednn(config)
        config.set_optim_cache_dir(temporary)
        config.enable_save_optim_model(True)
        inference.create_predictor(config)
        saved = Path(temporary) / "_optimized.pdmodel"
        program = programs.read(saved)
        parameters = programs.read_parameters(program, saved.with_suffix(".pdiparams"))
    return Fused(program, parameters)


def merge_transposes(program: ProgramDesc) -> None:
    """Let attention's second product write its heads side by side, without a copy after it."""
    block = program.blocks[0]
    gone = []
    for product in [op for op in block.ops if op.type == "fused_matmul"]:
        readers = programs.consumers(block, programs.argument(product.outputs, "Out"))
        if [reader.type for reader in readers] != ["transpose2"]:
            continue
        transpose = readers[0]
        readers = programs.consumers(block, programs.argument(transpose.outputs, "Out"))
        if [reader.type for reader in readers] != ["reshape2"]:
            continue
        axes = list(programs.attribute(transpose, "axis").ints)
        shape = list(programs.attribute(readers[0], "shape").ints)
        programs.set_attribute(product, "fused_transpose_Out", axes)
        programs.set_attribute(product, "fused_reshape_Out", shape)
        _set_output(product, "Out", programs.argument(readers[0].outputs, "Out"))
        gone += [transpose, readers[0]]
    programs.replace_ops(block, [op for op in block.ops if not any(op is one for one in gone)])


def first_token_only(program: ProgramDesc) -> None:
    """Let the last layer compute [CLS] only, where the program reads nothing else of it.

    Its keys and values still come from all tokens, so that the logits stay the same.
    """
    block = program.blocks[0]
    slices = [op for op in block.ops if op.type == "slice"]
    products = [op for op in block.ops if op.type == "fused_matmul"]
    if len(slices) != 1 or len(products) < 2:
        return  # not a classifier: every token's state is an answer
    taken = slices[0]
    if len(programs.consumers(block, programs.argument(taken.inputs, "Input"))) != 1:
        return
    scores, mixed = products[-2:]
    query = programs.producer(block, programs.argument(scores.inputs, "X"))
    keys = programs.producer(block, programs.argument(scores.inputs, "Y"))
    values = programs.producer(block, programs.argument(mixed.inputs, "Y"))
    state = programs.argument(query.inputs, "Input")
    first = programs.copy(taken)
    _set_input(first, "Input", state)
    _set_output(first, "Out", state + FIRST)
    del programs.attribute(first, "decrease_axis").ints[:]
    ops = []
    for op in block.ops:
        if op is not keys and op is not values:
            for slot in op.inputs:
                slot.arguments[:] = [state + FIRST if n == state else n for n in slot.arguments]
        ops.append(op)
        if any(state in slot.arguments for slot in op.outputs):
            ops.append(first)
    programs.add_variable(block, state, state + FIRST)
    programs.replace_ops(block, ops)


def layers(program: ProgramDesc) -> list[OpDesc]:
    """The fc operators, one a Linear, in the order in which they run."""
    return [op for op in program.blocks[0].ops if op.type == "fc"]


def to_int8(
    program: ProgramDesc, thresholds: dict[str, float], weights: dict[str, Quantized]
) -> list[str]:
    """Make every fc compute in int8 whose input has a threshold and whose weight is quantized.

    thresholds: for inputs of layers, the magnitude that becomes 127; larger ones are cut.
    weights: int8 [K, N] with N scales (axis 1).
    Returns the names of the weights that are multiplied in int8.
    """
    block = program.blocks[0]
    thresholds = {**thresholds, **{name + FIRST: value for name, value in thresholds.items()}}

    def is_int8(op: OpDesc) -> bool:
        return (
            op.type == "fc"
            and programs.argument(op.inputs, "Input") in thresholds
            and programs.argument(op.inputs, "W") in weights
        )

    done: list[str] = []
    ops: list[OpDesc] = []
    as_int8: dict[str, str] = {}  # variables that are there as int8, and under which name
    for op in list(block.ops):
        if is_int8(op):
            source, weight, target = (
                programs.argument(op.inputs, "Input"),
                programs.argument(op.inputs, "W"),
                programs.argument(op.outputs, "Out"),
            )
            if source not in as_int8:
                as_int8[source] = source + INT8
                ops.append(_quantize(source, thresholds[source]))
                described = programs.add_variable(block, source, source + INT8)
                described.type.lod_tensor.tensor.data_type = VarType.INT8
            _set_input(op, "Input", as_int8[source])
            programs.set_attribute(op, "mkldnn_data_type", "int8")
            programs.set_attribute(op, "Scale_in", _steps(thresholds[source]))
            scales = [_steps(float(scale)) for scale in weights[weight].scales]
            programs.set_attribute(op, "Scale_weights", scales)
            inner = all(is_int8(reader) for reader in programs.consumers(block, target))
            programs.set_attribute(op, "force_fp32_output", not inner)
            programs.set_attribute(op, "Scale_out", _steps(thresholds[target]) if inner else 1.0)
            if inner:
                as_int8[target] = target
                programs.variable(block, target).type.lod_tensor.tensor.data_type = VarType.INT8
            done.append(weight)
        ops.append(op)
    programs.replace_ops(block, ops)
    return done


def weight_steps(cpuinfo: str) -> int:
    """The integer that a channel's largest weight becomes on a processor (`environment.cpuinfo`).

    Without VNNI oneDNN 3.2.1 multiplies bytes by `vpmaddubsw`, which adds two products in 16 bits
    and cuts off what is larger: 4 % of a layer's outputs were wrong, by up to a fifth of the
    largest. With weights of up to 64, 2 * 255 * 64 just fits (Intel's guide on int8 without VNNI
    advises the same). They lose one of 8 bits for it.
    """
    return largest(8) if "avx512_vnni" in cpuinfo.split() else 64


def keep_from_overflow(program: ProgramDesc, steps: int) -> None:
    """Let the int8 layers round their weights to at most `steps` (of `weight_steps`)."""
    for op in layers(program):
        if any(found.name == "Scale_weights" for found in op.attrs):
            scales = programs.attribute(op, "Scale_weights").floats
            programs.set_attribute(op, "Scale_weights", [s * steps / largest(8) for s in scales])


def simulate(
    x: np.ndarray,
    threshold: float,
    weight: Quantized,
    bias: np.ndarray | None = None,
    steps: int = 127,
) -> np.ndarray:
    """The int8 layer in NumPy: x float32 [..., K] → float32 [..., N]; see this module's text.

    steps: of `weight_steps`.
    """
    x8 = np.clip(np.rint(x.astype(np.float32) * np.float32(_steps(threshold))), -128, 127)
    w8 = np.rint(weight.integers * np.float32(steps / largest(8)))
    product = x8.astype(np.float64) @ w8.astype(np.float64)
    y = product * (threshold / largest(8)) * (weight.scales.astype(np.float64) / steps)
    return (y if bias is None else y + bias).astype(np.float32)


def _steps(threshold: float) -> float:
    return largest(8) / threshold


def _quantize(source: str, threshold: float) -> OpDesc:
    op = OpDesc(type="quantize")
    op.inputs.add(parameter="Input").arguments.append(source)
    op.outputs.add(parameter="Output").arguments.append(source + INT8)
    programs.set_attribute(op, "Scale", _steps(threshold))
    programs.set_attribute(op, "Shift", 0.0)
    programs.set_attribute(op, "is_negative_input", True)
    programs.set_attribute(op, "bfloat16", False)
    programs.set_attribute(op, "output_format", "NCHW")
    programs.set_attribute(op, "use_mkldnn", True)
    programs.set_attribute(op, "mkldnn_data_type", "int8")
    return op


def _set_input(op: OpDesc, parameter: str, name: str) -> None:
    next(slot for slot in op.inputs if slot.parameter == parameter).arguments[0] = name


def _set_output(op: OpDesc, parameter: str, name: str) -> None:
    next(slot for slot in op.outputs if slot.parameter == parameter).arguments[0] = name
