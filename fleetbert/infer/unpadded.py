"""A batch without its padding: all but attention computes on the tokens of all texts in one line.

Padding costs as much as text. Only attention has to know which tokens are of one text. So its
input is spread out to [texts, length, width] before the products for query, key and value, and what
it gives is collected again, in int8 programs both as integers: three quarters of the products are
of tokens only. The answers are the same bit for bit.

Method: ByteTransformer (Zhai et al. 2023, section III-D, "zero padding").

Only `fc` keeps keys in the cache that confuses shapes (see `workarounds.check_length`). One in the
line has a key for each number of tokens; one of spread tokens sees SAFE_LENGTHS.
"""

from __future__ import annotations

from typing import Sequence

from fleetbert import program as programs
from fleetbert.program import BlockDesc, OpDesc, ProgramDesc, VarType

# The inputs that `rewrite` adds: fields of `line.Places`.
INPUTS = ("spread", "collect", "first")
# What counts the dimensions before the width: a batch has two, the line has one.
RANKS = {"fc": "in_num_col_dims", "layer_norm": "begin_norm_axis"}


def rewrite(program: ProgramDesc, inputs: Sequence[str]) -> ProgramDesc:
    """The program that computes from the line of tokens, float32 [tokens, width], the mask and
    INPUTS, of one that computes from the states [texts, length, width] and the mask, `inputs`. What
    it gives of all tokens is in a line, too.

    Attention has to be as `onednn.merge_transposes` leaves it.
    """
    program = programs.copy(program)
    block = program.blocks[0]
    for name in INPUTS:
        described = block.vars.add(name=name)
        described.type.type = VarType.LOD_TENSOR
        described.type.lod_tensor.tensor.data_type = VarType.INT64
        described.type.lod_tensor.tensor.dims.extend([-1] * (1 if name == "collect" else 2))
    projected, attended = _borders(block)
    line = {inputs[0]}
    ops: list[OpDesc] = []

    def look_up(source: str, index: str) -> str:
        """The variable with the rows `index` of `source`."""
        target = f"{source}@by-{index}"
        if all(target not in op.outputs[0].arguments for op in ops):
            programs.add_variable(block, source, target)
            op = OpDesc(type="lookup_table_v2")
            op.inputs.add(parameter="W").arguments.append(source)
            op.inputs.add(parameter="Ids").arguments.append(index)
            op.outputs.add(parameter="Out").arguments.append(target)
            programs.set_attribute(op, "padding_idx", -1)
            ops.append(op)
        return target

    for op in list(block.ops):
        made = {name for slot in op.outputs for name in slot.arguments}
        index = "first" if op.type == "slice" else "spread" if made & projected else None
        in_line = False
        for slot in op.inputs:
            for place, name in enumerate(slot.arguments):
                if name in attended:
                    name = slot.arguments[place] = look_up(name, "collect")
                    line.add(name)
                if name in line and index:
                    slot.arguments[place] = look_up(name, index)
                elif name in line:
                    in_line = True
        if in_line:
            line |= made
            if op.type in RANKS:
                programs.set_attribute(op, RANKS[op.type], 1)
        ops.append(op)
    outputs = [programs.argument(op.inputs, "X") for op in block.ops if op.type == "fetch"]
    programs.replace_ops(block, ops)
    return programs.cut(program, [*inputs, *INPUTS], outputs)


def _borders(block: BlockDesc) -> tuple[set[str], set[str]]:
    """The variables that a batch's queries, keys and values are, and those in which attention gives
    all tokens of a batch, to which its products are changed: [texts * length, width]. In int8
    programs these are the integers."""
    projected: set[str] = set()
    attended: set[str] = set()
    for layer in programs.attentions(block):
        three = (layer.query, layer.key, layer.value)
        projected |= {programs.argument(op.outputs, "Out") for op in three}
        if layer.one_query:
            continue
        width = programs.attribute(layer.mixed, "fused_reshape_Out").ints[-1]
        programs.set_attribute(layer.mixed, "fused_reshape_Out", [-1, width])
        given = programs.argument(layer.mixed.outputs, "Out")
        readers = programs.consumers(block, given)
        quantizes = [op for op in readers if op.type == "quantize"]
        integers = [programs.argument(op.outputs, "Output") for op in quantizes]
        attended |= {*(integers or [given])}
    return projected, attended
