"""Attention's second product writes its heads side by side, without a copy after it."""

from __future__ import annotations

from fleetbert.graph import program as programs
from fleetbert.graph.program import OpDesc, ProgramDesc


def merge_transposes(program: ProgramDesc) -> ProgramDesc:
    """A fused program whose products do the transpose and the reshape that come after them."""
    program = programs.copy(program)
    block = program.blocks[0]
    gone: list[OpDesc] = []
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
        programs.set_attributes(product, fused_transpose_Out=axes, fused_reshape_Out=shape)
        result = programs.argument(readers[0].outputs, "Out")
        programs.set_argument(product.outputs, "Out", result)
        gone += [transpose, readers[0]]
    programs.replace_ops(block, [op for op in block.ops if not any(op is one for one in gone)])
    return program
