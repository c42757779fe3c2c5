"""Where a program takes from which tokens are padding.

A network makes its mask of `input_ids == pad`, and so does the program that is exported of it: it
would not look at such a token inside a text. Texts have lengths; of these comes the mask.
"""

from __future__ import annotations

from fleetbert.graph import program as programs
from fleetbert.graph.program import BlockDesc, OpDesc, ProgramDesc, VarType

MASK = "attention_mask"  # int64 [texts, length]: 1 at tokens, 0 at padding


def mask_as_input(program: ProgramDesc) -> ProgramDesc:
    """The program with MASK as its last input, in place of what it compares input_ids with; as it
    is where it compares them with nothing, or with several tokens, which are not all padding."""
    block = program.blocks[0]
    compared = [op for op in block.ops if _compares(op)]
    if len({_other(block, op) for op in compared}) != 1:
        return program
    program = programs.copy(program)
    block = program.blocks[0]
    real = f"{MASK}@real"
    programs.new_variable(block, MASK, VarType.INT64, [-1, -1])
    programs.new_variable(block, real, VarType.BOOL, [-1, -1])
    ops = [
        programs.port("feed", "feed", MASK, len(programs.input_names(program))),
        programs.operator(
            *("cast", {"X": MASK}, {"Out": real}),
            in_dtype=int(VarType.INT64),
            out_dtype=int(VarType.BOOL),
        ),
    ]
    for op in block.ops:
        if _compares(op):
            kind = "logical_not" if op.type == "equal" else "assign"
            target = {"Out": programs.argument(op.outputs, "Out")}
            ops.append(programs.operator(kind, {"X": real}, target))
        else:
            ops.append(op)
    read = {name for op in ops for name in programs.read_by(op)}
    # Paddle's passes crash at a constant that nothing reads (`compat`).
    kept = [op for op in ops if op.type != "fill_constant" or read & set(programs.written_by(op))]
    programs.replace_ops(block, kept)
    return program


def _compares(op: OpDesc) -> bool:
    return op.type in ("equal", "not_equal") and programs.argument(op.inputs, "X") == "input_ids"


def _other(block: BlockDesc, op: OpDesc) -> object:
    """What input_ids are compared with: a constant, or a stored tensor's name."""
    name = programs.argument(op.inputs, "Y")
    for source in block.ops:
        if source.type == "fill_constant" and name in programs.written_by(source):
            return programs.attribute(source, "value").f
    return name
