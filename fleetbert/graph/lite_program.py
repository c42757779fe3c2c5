"""What a float32 program needs before Paddle Lite's converter `opt` (2.13) takes it.

Each rewrite leaves Paddle's own answers as they are, to the bit; `export.lite` checks it.

- fill_constant of shape [] becomes one of shape [1]: `opt` refuses the former.
- matmul_v2 with a stored matrix becomes `mul`: `opt` makes integers of both, and the engine widens
  those of `mul`, `fc` and `lookup_table` only, so that a matmul_v2 left alone answers NaN.
- lookup_table_v2 becomes `lookup_table`, which wants its ids as a column: `opt` leaves the former
  in float32, which is half of a small model's file.
"""

from __future__ import annotations

from fleetbert.core.errors import UserError
from fleetbert.graph import program as programs
from fleetbert.graph import weights
from fleetbert.graph.mul import to_mul
from fleetbert.graph.program import OpDesc, Parameters, ProgramDesc
from fleetbert.graph.tidy import give_shapes

COLUMN = "@column"
# What becomes integers, and the slot of its weight.
QUANTIZED = {"mul": "Y", "lookup_table": "W"}


def for_lite(program: ProgramDesc, arrays: Parameters) -> ProgramDesc:
    """The program after the three rewrites; `arrays`: its stored tensors."""
    return _to_lookup_table(to_mul(give_shapes(program), arrays))


def quantized_weights(program: ProgramDesc, arrays: Parameters) -> list[str]:
    """The matrices that `opt` makes integers of in a rewritten program.

    UserError if the program reads one of them twice or in a way in which it would not be widened.
    """
    names = [
        programs.argument(op.inputs, QUANTIZED[op.type])
        for op in program.blocks[0].ops
        if op.type in QUANTIZED
    ]
    for op in program.blocks[0].ops:
        read = {*programs.read_by(op)}
        bad = [name for name in read if op.type == "matmul_v2" and name in arrays]
        bad += [name for name in names if names.count(name) > 1]
        if bad:
            raise UserError(
                f"the program uses {bad[0]} in a way that Paddle Lite's converter cannot make "
                "integers of; use --precision float32 or float16"
            )
    return names


def as_integers(arrays: Parameters, names: list[str], bits: int) -> Parameters:
    """The tensors with the float32 values that the integers of `names` stand for, a scale for each
    column: what the engine computes with after `opt` has rounded them."""
    rounded = {name: weights.widen(weights.quantize(arrays[name], 1, bits)) for name in names}
    return {**arrays, **rounded}


def _to_lookup_table(program: ProgramDesc) -> ProgramDesc:
    program = programs.copy(program)
    block = program.blocks[0]
    ops: list[OpDesc] = []
    columns: set[str] = set()
    for op in block.ops:
        if op.type == "lookup_table_v2":
            ids = programs.argument(op.inputs, "Ids")
            if ids not in columns:
                columns.add(ids)
                ops.append(_column(program, ids))
            op.type = "lookup_table"
            programs.set_argument(op.inputs, "Ids", ids + COLUMN)
        ops.append(op)
    programs.replace_ops(block, ops)
    return program


def _column(program: ProgramDesc, ids: str) -> OpDesc:
    """ids [texts, length] → [texts, length, 1], as an operator."""
    block = program.blocks[0]
    source = programs.variable(block, ids)
    rank = len(source.type.lod_tensor.tensor.dims)
    outputs = {"Out": ids + COLUMN, "XShape": ids + COLUMN + "@shape"}
    for name in outputs.values():
        variable = programs.copy(source)
        variable.name = name
        variable.ClearField("need_check_feed")
        variable.type.lod_tensor.tensor.dims.append(1)
        block.vars.append(variable)
    return programs.operator("unsqueeze2", {"X": ids}, outputs, axes=[rank])
