"""Linear layers as Paddle's older operator `mul`.

Paddle's WeightQuantization takes `mul` and refuses `matmul_v2`, which is every Linear of a BERT.
With a stored matrix as second factor the two are the same, to the bit.
"""

from __future__ import annotations

from typing import Sequence

from fleetbert.graph import program as programs
from fleetbert.graph.program import Parameters, ProgramDesc


def to_mul(program: ProgramDesc, arrays: Parameters, skip: Sequence[str] = ()) -> ProgramDesc:
    """The program with its products with a matrix of `arrays`, but those of `skip`, as `mul`."""
    program = programs.copy(program)
    for op in program.blocks[0].ops:
        if op.type != "matmul_v2":
            continue
        name = programs.argument(op.inputs, "Y")
        if name not in arrays or name in skip or arrays[name].ndim != 2:
            continue
        if any(programs.attribute(op, side).b for side in ("trans_x", "trans_y")):
            continue
        dims = programs.tensor(program.blocks[0], programs.argument(op.inputs, "X")).dims
        op.type = "mul"
        del op.attrs[:]
        programs.set_attributes(op, x_num_col_dims=len(dims) - 1, y_num_col_dims=1)
    return program
