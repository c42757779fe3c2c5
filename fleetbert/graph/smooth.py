"""Smoothing (SmoothQuant): a float32 program → one that computes the same, whose Linear layers get
inputs with channels of like size.

Channels of an activation differ in size, and one threshold for all makes the steps of the small
ones coarse. So each is divided by a smoothing scale, and its row of the weight is multiplied with
it (Xiao et al. 2023, "SmoothQuant", equation 3): x @ w = (x / s) @ (s * w).

Attention mixes tokens, not channels, so what its output is divided by goes into the value's weight
and bias, at no cost at run time. The output of a norm is read by the residual too, so it stays as
it is, and a product with a vector stands before the layers that read it: two a layer of the
encoder. (Folding it into the norm takes the same product on the residual's side, and the hidden
states that heads of early exits read would be others.)
"""

from __future__ import annotations

from typing import Mapping

import numpy as np

from fleetbert.graph import program as programs
from fleetbert.graph.program import BlockDesc, OpDesc, Parameters, ProgramDesc, VarType

SMOOTH = "@smooth"  # after the name of a variable: the same, divided
BY = "@smooth_by"  # the vector that it is multiplied with


def inputs(program: ProgramDesc) -> dict[str, list[str]]:
    """The variables of an unfused BERT that can be smoothed, and the weights of the layers that
    read each: outputs of norms and of attention."""
    block = program.blocks[0]
    readers: dict[str, list[str]] = {}
    for op in _linear(program):
        source = programs.argument(op.inputs, "X")
        kind = programs.producer(block, source).type
        if kind == "layer_norm" or (kind == "reshape2" and _value(block, source) is not None):
            readers.setdefault(source, []).append(programs.argument(op.inputs, "Y"))
    return readers


def is_free(program: ProgramDesc, source: str) -> bool:
    """Whether the scales go into other weights, without a product at run time."""
    return programs.producer(program.blocks[0], source).type != "layer_norm"


def smooth(
    program: ProgramDesc, parameters: Parameters, scales: Mapping[str, np.ndarray]
) -> tuple[ProgramDesc, Parameters]:
    """The unfused program with each of these `inputs` divided, by float32 [K] for each channel."""
    program, parameters = programs.copy(program), dict(parameters)
    block = program.blocks[0]
    products: dict[str, OpDesc] = {}  # by the input that they divide
    for source, by in scales.items():
        readers = [op for op in _linear(program) if programs.argument(op.inputs, "X") == source]
        for op in readers:
            weight = programs.argument(op.inputs, "Y")
            parameters[weight] = (parameters[weight] * by[:, None]).astype(np.float32)
        value = _value(block, source)
        if value is not None:
            for name in value:
                parameters[name] = (parameters[name] / by).astype(np.float32)
            continue
        programs.new_variable(block, source + BY, VarType.FP32, by.shape)
        programs.variable(block, source + BY).persistable = True
        parameters[source + BY] = (1 / by).astype(np.float32)
        programs.add_variable(block, source, source + SMOOTH)
        products[source] = programs.product(source, source + BY, source + SMOOTH)
        for op in readers:
            programs.set_argument(op.inputs, "X", source + SMOOTH)
    ops = []
    for op in block.ops:
        ops.append(op)
        ops += [products[name] for name in programs.written_by(op) if name in products]
    programs.replace_ops(block, ops)
    return program, parameters


def product_before(block: BlockDesc, name: str) -> OpDesc | None:
    """The product that divides, where it gives the variable `name`."""
    if not name.endswith(SMOOTH):
        return None
    return programs.producer(block, name)


def _linear(program: ProgramDesc) -> list[OpDesc]:
    block = program.blocks[0]
    stored = set(programs.parameter_names(program))
    products = [op for op in block.ops if op.type == "matmul_v2"]
    return [op for op in products if programs.argument(op.inputs, "Y") in stored]


def _value(block: BlockDesc, source: str) -> tuple[str, str] | None:
    """Weight and bias of the value layer whose channels `source` has, attention's output."""
    stored = {described.name for described in block.vars if described.persistable}
    mixed = _back(block, source, "reshape2", "transpose2", "matmul_v2")
    if mixed is None:
        return None
    added = _back(
        block, programs.argument(mixed.inputs, "Y"), "transpose2", "reshape2", "elementwise_add"
    )
    if added is None:
        return None
    product = programs.producer(block, programs.argument(added.inputs, "X"))
    names = programs.argument(product.inputs, "Y"), programs.argument(added.inputs, "Y")
    return names if product.type == "matmul_v2" and stored.issuperset(names) else None


def _back(block: BlockDesc, name: str, *kinds: str) -> OpDesc | None:
    """The last of operators of these kinds, each of which gives the one before its X, the first
    `name`; None where they are others."""
    op = None
    for kind in kinds:
        makers = [op for op in block.ops if name in programs.written_by(op)]
        if not makers or makers[0].type != kind:
            return None
        op = makers[0]
        name = programs.argument(op.inputs, "X")
    return op
