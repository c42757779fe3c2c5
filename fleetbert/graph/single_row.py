"""A program for batches of a single row without padding.

Such a batch needs no mask. So the products for query, key and value become one, and what attention
does with them becomes Paddle's `self_dp_attention`, which knows no mask: 11 operators a layer
instead of 16. For one text most of the time is what an operator costs beside its work: MiniLM in
int8 takes 3.0 ms for 24 tokens instead of 3.4 (2 threads).

Rows may have any length here. With one row keys in oneDNN's cache cannot meet (see
`compat.lengths`), and a new length takes 2 ms once.
"""

from __future__ import annotations

import numpy as np

from fleetbert.compat import processor
from fleetbert.graph import program as programs
from fleetbert.graph.program import OpDesc, Parameters, ProgramDesc

# Parameters are held twice, which is not worth the 5 to 8 % that BERT-base gains.
WIDEST = 512
JOINED = "@joined"


def fits(program: ProgramDesc) -> bool:
    """Whether `rewrite`'s program runs on this processor and is worth its memory."""
    return processor.has_self_dp_attention() and width(program) <= WIDEST


def width(program: ProgramDesc) -> int:
    """The width of the hidden states: 768 in BERT-base."""
    block = program.blocks[0]
    norm = next(op for op in block.ops if op.type == "layer_norm")
    return programs.tensor(block, programs.argument(norm.inputs, "Scale")).dims[0]


def rewrite(
    program: ProgramDesc, parameters: Parameters, state: str, mask: str
) -> tuple[ProgramDesc, Parameters]:
    """The program for one row, and its parameters, of one that computes from `state` and `mask`.

    Attention has to be two products and a softmax, as `merge_transposes` leaves it.
    The result computes from `state` only, float32 [1, length, width].
    """
    program = programs.copy(program)
    block = program.blocks[0]
    parameters = dict(parameters)
    means = [mean.product for mean in programs.means(block, mask)]
    ops = [_mean(op) if any(op is product for product in means) else op for op in block.ops]
    for layer in programs.attentions(block):
        scores, mixed = layer.scores, layer.mixed
        if not layer.one_input:
            _drop_input(scores, "ResidualData")
            continue
        three = [layer.query, layer.key, layer.value]
        _, _, heads, size = programs.attribute(scores, "fused_reshape_X").ints
        joined = _join(block, three, parameters)
        programs.set_attributes(joined, fused_reshape2_shape=[1, -1, 3, heads, size])
        source, target = (programs.argument(op.outputs, "Out") for op in (joined, mixed))
        scaled = {"head_number": heads, "alpha": programs.attribute(scores, "matmul_alpha").f}
        attention = programs.operator("self_dp_attention", {"X": source}, {"Out": target}, **scaled)
        gone = [*three[1:], scores, layer.softmax]
        ops = [op for op in ops if not any(op is product for product in gone)]
        ops = [joined if op is three[0] else attention if op is mixed else op for op in ops]
    programs.replace_ops(block, ops)
    program = programs.cut(program, [state], programs.output_names(program))
    return program, {name: parameters[name] for name in programs.parameter_names(program)}


def _mean(product: OpDesc) -> OpDesc:
    """What a product with the mask of a row without padding is, but for its length."""
    states = {"X": programs.argument(product.inputs, "Y")}
    target = {"Out": programs.argument(product.outputs, "Out")}
    return programs.operator(
        "reduce_mean", states, target, dim=[1], keep_dim=True, reduce_all=False
    )


def _join(block: programs.BlockDesc, three: list[OpDesc], parameters: Parameters) -> OpDesc:
    """One fc for three of the same input, whose outputs lie side by side; its parameters are added
    to `parameters`."""
    joined = programs.copy(three[0])
    for slot in joined.inputs:
        if slot.parameter != "Input":
            names = [programs.argument(op.inputs, slot.parameter) for op in three]
            name = names[0] + JOINED
            parameters[name] = np.concatenate([parameters[each] for each in names], -1)
            programs.add_variable(block, names[0], name)
            programs.tensor(block, name).dims[:] = parameters[name].shape
            slot.arguments[:] = [name]
    output = programs.argument(joined.outputs, "Out")
    programs.add_variable(block, output, output + JOINED)
    joined.outputs[0].arguments[:] = [output + JOINED]
    if programs.has_attribute(joined, "Scale_weights"):  # in int8
        scales = [programs.attribute(op, "Scale_weights").floats for op in three]
        programs.set_attributes(joined, Scale_weights=[scale for each in scales for scale in each])
    return joined


def _drop_input(op: OpDesc, parameter: str) -> None:
    kept = [programs.copy(slot) for slot in op.inputs if slot.parameter != parameter]
    del op.inputs[:]
    op.inputs.extend(kept)
