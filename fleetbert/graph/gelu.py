"""GELU's approximation with tanh, spelled out for converters.

paddle2onnx 1.3.1 and Paddle Lite 2.13 pass over the attribute `approximate` of Paddle's operator
gelu, and compute the one with erf: another model, whose logits part by 0.002.
"""

from __future__ import annotations

import math

from fleetbert.graph import program as programs
from fleetbert.graph.program import OpDesc, ProgramDesc

# Hendrycks and Gimpel 2016: x/2 * (1 + tanh(SLOPE * x + CUBIC * x^3)). As (1 + tanh z) / 2 is the
# logistic function of 2 z, that is x * sigmoid(x * (2 SLOPE + 2 CUBIC x^2)).
SLOPE = math.sqrt(2 / math.pi)
CUBIC = 0.044715 * SLOPE


def spell_out(program: ProgramDesc) -> ProgramDesc:
    """The program with each approximate gelu as products, a scale and a sigmoid."""
    program = programs.copy(program)
    block = program.blocks[0]
    ops: list[OpDesc] = []
    for op in block.ops:
        approximate = op.type == "gelu" and programs.attribute(op, "approximate").b
        ops += _parts(program, op) if approximate else [op]
    programs.replace_ops(block, ops)
    return program


def _parts(program: ProgramDesc, op: OpDesc) -> list[OpDesc]:
    x, y = programs.argument(op.inputs, "X"), programs.argument(op.outputs, "Out")
    square, factor, inner, gate = (f"{y}@{n}" for n in ("square", "factor", "inner", "gate"))
    for name in (square, factor, inner, gate):
        programs.add_variable(program.blocks[0], y, name)
    line = {"scale": 2 * CUBIC, "bias": 2 * SLOPE, "bias_after_scale": True}
    return [
        programs.product(x, x, square),
        programs.operator("scale", {"X": square}, {"Out": factor}, **line),
        programs.product(x, factor, inner),
        programs.operator("sigmoid", {"X": inner}, {"Out": gate}),
        programs.product(x, gate, y),
    ]
