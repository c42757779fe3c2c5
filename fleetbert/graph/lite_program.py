"""What a float32 program needs before Paddle Lite's converter `opt` (2.13) takes it.

Each rewrite leaves Paddle's own answers as they are, to the bit; `export.lite` checks it.

- fill_constant of shape [] becomes one of shape [1]: `opt` refuses the former.
- matmul_v2 with a stored matrix becomes `mul`: `opt` makes integers of both, and the engine widens
  those of `mul`, `fc` and `lookup_table` only, so that a matmul_v2 left alone answers NaN.
- lookup_table_v2 becomes `lookup_table`, which wants its ids as a column: `opt` leaves the former
  in float32, which is half of a small model's file.
"""

from __future__ import annotations

import numpy as np

from fleetbert.compress import dynamic
from fleetbert.errors import UserError
from fleetbert.graph import program as programs
from fleetbert.graph import tidy, weights
from fleetbert.graph.program import OpDesc, ProgramDesc

COLUMN = "@column"
# What becomes integers, and the slot of its weight.
QUANTIZED = {"mul": "Y", "lookup_table": "W"}


def rewrite(program: ProgramDesc, arrays: dict[str, np.ndarray]) -> None:
    """Make the three rewrites in a program whose stored tensors are `arrays`."""
    tidy.give_shapes(program.blocks[0])
    dynamic.to_mul(program, arrays)
    _to_lookup_table(program)


def quantized_weights(program: ProgramDesc, arrays: dict[str, np.ndarray]) -> list[str]:
    """The matrices that `opt` makes integers of in a rewritten program.

    UserError if the program reads one of them twice or in a way in which it would not be widened.
    """
    names = [
        programs.argument(op.inputs, QUANTIZED[op.type])
        for op in program.blocks[0].ops
        if op.type in QUANTIZED
    ]
    for op in program.blocks[0].ops:
        read = {name for slot in op.inputs for name in slot.arguments}
        bad = [name for name in read if op.type == "matmul_v2" and name in arrays]
        bad += [name for name in names if names.count(name) > 1]
        if bad:
            raise UserError(
                f"the program uses {bad[0]} in a way that Paddle Lite's converter cannot make "
                "integers of; use --precision float32 or float16"
            )
    return names


def as_integers(
    arrays: dict[str, np.ndarray], names: list[str], bits: int
) -> dict[str, np.ndarray]:
    """The tensors with the float32 values that the integers of `names` stand for, a scale for each
    column: what the engine computes with after `opt` has rounded them."""
    rounded = {name: weights.widen(weights.quantize(arrays[name], 1, bits)) for name in names}
    return {**arrays, **rounded}


def _to_lookup_table(program: ProgramDesc) -> None:
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
            next(slot for slot in op.inputs if slot.parameter == "Ids").arguments[0] = ids + COLUMN
        ops.append(op)
    programs.replace_ops(block, ops)


def _column(program: ProgramDesc, ids: str) -> OpDesc:
    """ids [texts, length] → [texts, length, 1], as an operator."""
    block = program.blocks[0]
    source = programs.variable(block, ids)
    rank = len(source.type.lod_tensor.tensor.dims)
    op = OpDesc(type="unsqueeze2")
    op.inputs.add(parameter="X").arguments.append(ids)
    for parameter, name in (("Out", ids + COLUMN), ("XShape", ids + COLUMN + "@shape")):
        variable = programs.copy(source)
        variable.name = name
        variable.ClearField("need_check_feed")
        variable.type.lod_tensor.tensor.dims.append(1)
        block.vars.append(variable)
        op.outputs.add(parameter=parameter).arguments.append(name)
    programs.set_attribute(op, "axes", [rank])
    return op
