"""A batch whose texts share rows: the program that computes of them, as `packing.Places` describes.

Only attention has to know which tokens are of one text, which the mask says. The last layer, which
computes what the first token of each text asks for, collects these from the rows, puts its
questions together by rows, and collects what they give.

`fc` is the only operator with keys in the cache that confuses shapes (see
`paddle_inference.check_length`): rows have SAFE_LENGTHS.
"""

from __future__ import annotations

from typing import Sequence

from fleetbert.graph import program as programs
from fleetbert.graph.program import OpDesc, ProgramDesc, VarType

# The inputs that a program may have after its state: fields of `packing.Places`, with their types.
INPUTS = {
    "mask": (VarType.FP32, 4),
    "opening": (VarType.INT64, 3),
    "asked": (VarType.INT64, 3),
    "answered": (VarType.INT64, 3),
    "asked_mask": (VarType.FP32, 4),
}


def rewrite(program: ProgramDesc, inputs: Sequence[str]) -> tuple[ProgramDesc, list[str]]:
    """The program that computes from rows of texts, float32 [rows, row_length, width], and those of
    INPUTS that it needs, of one that computes from the states [texts, length, width] and the mask,
    `inputs`.

    Attention has to be as `onednn.merge_transposes` leaves it.
    """
    program = programs.copy(program)
    block = program.blocks[0]
    for name, (kind, rank) in INPUTS.items():
        described = block.vars.add(name=name)
        described.type.type = VarType.LOD_TENSOR
        described.type.lod_tensor.tensor.data_type = kind
        described.type.lod_tensor.tensor.dims.extend([-1] * rank)
    taken: dict[str, str] = {}  # of a variable: the entries that are read instead of all
    for layer in programs.attentions(block):
        _replace(layer.scores, inputs[1], "asked_mask" if layer.one_query else "mask")
        if layer.one_query:
            taken[programs.argument(layer.query.outputs, "Out")] = "asked"
            taken[programs.argument(layer.mixed.outputs, "Out")] = "answered"
    # The first one takes first tokens from rows; one after it, from what they have become.
    for op in [op for op in block.ops if op.type == "slice"][:1]:
        source = programs.argument(op.inputs, "Input")
        op.CopyFrom(_gather(source, "opening", programs.argument(op.outputs, "Out")))
    ops = []
    for op in block.ops:
        for name, index in taken.items():
            _replace(op, name, f"{name}@{index}")
        ops.append(op)
        for name in [name for slot in op.outputs for name in slot.arguments if name in taken]:
            target = f"{name}@{taken[name]}"
            programs.add_variable(block, name, target)
            ops.append(_gather(name, taken[name], target))
    programs.replace_ops(block, ops)
    outputs = [programs.argument(op.inputs, "X") for op in block.ops if op.type == "fetch"]
    read = {name for op in block.ops for slot in op.inputs for name in slot.arguments}
    needed = [name for name in INPUTS if name in read]
    return programs.cut(program, [inputs[0], *needed], outputs), needed


def _gather(source: str, index: str, target: str) -> OpDesc:
    """The operator that takes the entries of the first two dimensions that `index` names."""
    op = OpDesc(type="gather_nd")
    op.inputs.add(parameter="X").arguments.append(source)
    op.inputs.add(parameter="Index").arguments.append(index)
    op.outputs.add(parameter="Out").arguments.append(target)
    return op


def _replace(op: OpDesc, old: str, new: str) -> None:
    for slot in op.inputs:
        slot.arguments[:] = [new if name == old else name for name in slot.arguments]
