"""The last layer computes [CLS] only, where the program reads nothing else of it."""

from __future__ import annotations

from fleetbert.graph import program as programs
from fleetbert.graph.program import ProgramDesc
from fleetbert.graph.smooth import product_before

FIRST = "@first"  # after the name of a state: that of the first token alone


def is_per_token(program: ProgramDesc) -> bool:
    """Whether the program's outputs are of every token: [texts, length, ...]."""
    return len(programs.tensor(program.blocks[0], programs.output_names(program)[0]).dims) == 3


def first_token_only(program: ProgramDesc) -> ProgramDesc:
    """The program with one query in its last layer; as it is where more of that layer is read.

    Its keys and values still come from all tokens, so that the logits stay the same.
    """
    program = programs.copy(program)
    block = program.blocks[0]
    slices = [op for op in block.ops if op.type == "slice"]
    layers = programs.attentions(block)
    if len(slices) != 1 or not layers:
        return program  # not a classifier: every token's state is an answer
    taken = slices[0]
    if len(programs.consumers(block, programs.argument(taken.inputs, "Input"))) != 1:
        return program
    state = programs.argument(layers[-1].query.inputs, "Input")
    renamed = {state: state + FIRST}
    smoothed = product_before(block, state)  # of all tokens for keys and values, of the first alone
    if smoothed is not None:
        state = programs.argument(smoothed.inputs, "X")
        renamed[state] = state + FIRST
    first = programs.copy(taken)
    programs.set_argument(first.inputs, "Input", state)
    programs.set_argument(first.outputs, "Out", state + FIRST)
    del programs.attribute(first, "decrease_axis").ints[:]
    ops = []
    for op in block.ops:
        if smoothed is not None and op is smoothed:
            of_first = programs.copy(smoothed)
            programs.rename([*of_first.inputs, *of_first.outputs], renamed)
            ops.append(of_first)
        elif op is not layers[-1].key and op is not layers[-1].value:
            programs.rename(op.inputs, renamed)
        ops.append(op)
        if state in programs.written_by(op):
            ops.append(first)
    for name, new in renamed.items():
        programs.add_variable(block, name, new)
    programs.replace_ops(block, ops)
    return program
