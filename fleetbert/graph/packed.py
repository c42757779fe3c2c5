"""A batch whose texts share rows: the program that computes of them, as `packing.PackedLayout`
describes.

Only attention has to know which tokens are of one text, which the mask says. The last layer, which
computes what the first token of each text asks for, collects these from the rows, puts its
questions together by rows, and collects what they give. A mean over a text's tokens is a product of
the row with the mask of the text's first token, and is collected in the same way.

`fc` is the only operator with keys in the cache that confuses shapes (see
`compat.lengths`): rows have SAFE_LENGTHS.
"""

from __future__ import annotations

from typing import Sequence

from fleetbert.graph import program as programs
from fleetbert.graph.program import OpDesc, ProgramDesc, VarType

# The inputs that a program may have after its state: fields of `packing.PackedLayout`, with their
# types and ranks.
INPUTS = {
    "mask": (VarType.FP32, 4),
    "first_tokens": (VarType.INT64, 3),
    "queries": (VarType.INT64, 3),
    "answers": (VarType.INT64, 3),
    "query_mask": (VarType.FP32, 4),
}


def rewrite(program: ProgramDesc, inputs: Sequence[str]) -> tuple[ProgramDesc, list[str]]:
    """The program that computes from rows of texts, float32 [rows, row_length, width], and those of
    INPUTS that it needs, of one that computes from the states [texts, length, width] and the mask,
    `inputs`.

    Attention has to be as `merge_transposes` leaves it.
    """
    program = programs.copy(program)
    block = program.blocks[0]
    for name, (kind, rank) in INPUTS.items():
        programs.new_variable(block, name, kind, [-1] * rank)
    taken: dict[str, str] = {}  # of a variable: the entries that are read instead of all
    for layer in programs.attentions(block):
        mask = "query_mask" if layer.one_query else "mask"
        programs.rename(layer.scores.inputs, {inputs[1]: mask})
        if layer.one_query:
            taken[programs.argument(layer.query.outputs, "Out")] = "queries"
            taken[programs.argument(layer.mixed.outputs, "Out")] = "answers"
    for pooled in programs.means(block, inputs[1]):
        programs.rename(pooled.mask.inputs, {inputs[1]: "query_mask"})
        taken[programs.argument(pooled.product.outputs, "Out")] = "answers"
    # The first one takes first tokens from rows; one after it, from what they have become.
    for op in [op for op in block.ops if op.type == "slice"][:1]:
        source = programs.argument(op.inputs, "Input")
        op.CopyFrom(_gather(source, "first_tokens", programs.argument(op.outputs, "Out")))
    ops = []
    for op in block.ops:
        programs.rename(op.inputs, {name: f"{name}@{index}" for name, index in taken.items()})
        ops.append(op)
        for name in [name for name in programs.written_by(op) if name in taken]:
            target = f"{name}@{taken[name]}"
            programs.add_variable(block, name, target)
            ops.append(_gather(name, taken[name], target))
    programs.replace_ops(block, ops)
    read = {name for op in block.ops for name in programs.read_by(op)}
    needed = [name for name in INPUTS if name in read]
    return programs.cut(program, [inputs[0], *needed], programs.output_names(program)), needed


def _gather(source: str, index: str, target: str) -> OpDesc:
    """The operator that takes the entries of the first two dimensions that `index` names."""
    return programs.operator("gather_nd", {"X": source, "Index": index}, {"Out": target})
