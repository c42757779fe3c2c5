"""Outlier units of feed-forwards, split so that one large unit does not make int8 coarse for all.

A unit whose output g(x) goes far beyond a threshold t stands k times more in the program, with
biases lower by t, 2 t, ..., k t, and the same weights. int8 cuts each piece at t, and their sum,

    min(g(x), t) + min(g(x - t), t) + ... + min(g(x - k t), t),

is g(x) up to (k + 1) t for RELU; GELU is off by 0.17 at most near multiples of t, as it is no
straight line around 0. The idea is outlier channel splitting (Zhao et al. 2019, ICML), which halves
a channel; here the limit of the integers splits it. In float32 such a program computes something
else, as nothing is cut there.
"""

from __future__ import annotations

from typing import Mapping, NamedTuple, Sequence

import numpy as np

from fleetbert.graph import gelu
from fleetbert.graph import program as programs
from fleetbert.graph.program import BlockDesc, Parameters, ProgramDesc
from fleetbert.graph.weights import Quantized

RELU = "relu"
ACTIVATIONS = (RELU, "gelu_erf", "gelu_tanh")


class Pair(NamedTuple):
    """Weight and bias of a feed-forward's first Linear, and the activation after it."""

    first: str
    bias: str
    activation: str


class Pieces(NamedTuple):
    """units: of which each piece is one, int64 [E]; lower: by what its bias is, float32 [E]."""

    units: np.ndarray
    lower: np.ndarray


def pairs(program: ProgramDesc) -> dict[str, Pair]:
    """The feed-forwards of a fused program, by the weight of the second Linear."""
    block = program.blocks[0]
    second_layers = {}
    for op in block.ops:
        if op.type != "fc" or not programs.has_attribute(op, "fuse_activation"):
            continue
        activation = programs.attribute(op, "fuse_activation").s
        biases = [slot.arguments[0] for slot in op.inputs if slot.parameter == "Bias"]
        readers = programs.consumers(block, programs.argument(op.outputs, "Out"))
        if activation in ACTIVATIONS and biases and [reader.type for reader in readers] == ["fc"]:
            second = programs.argument(readers[0].inputs, "W")
            second_layers[second] = Pair(programs.argument(op.inputs, "W"), biases[0], activation)
    return second_layers


def pieces(units: Sequence[int] | np.ndarray, threshold: float) -> Pieces:
    """The pieces of units that are named once for each piece more."""
    numbers = np.asarray(units, np.int64)
    times = [int((numbers[:place] == unit).sum()) + 1 for place, unit in enumerate(numbers)]
    return Pieces(numbers, np.float32(threshold) * np.asarray(times, np.float32))


def outputs(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray, activation: str, some: Pieces
) -> np.ndarray:
    """What the pieces give of inputs of the first Linear, [tokens, K] → float32 [tokens, E]."""
    y = x @ weight[:, some.units] + (bias[some.units] - some.lower)
    if activation == RELU:
        return np.maximum(y, 0)
    # Of erf within 0.0005, a hundredth of the steps that this is for.
    inner = np.maximum(2 * y * (gelu.SLOPE + gelu.CUBIC * y * y), -60)
    values: np.ndarray = y / (1 + np.exp(-inner))
    return values


def widen_first(weight: Quantized, some: Pieces) -> Quantized:
    """The first Linear's weight with columns for the pieces."""
    integers = np.concatenate([weight.integers, weight.integers[:, some.units]], 1)
    return Quantized(integers, np.concatenate([weight.scales, weight.scales[some.units]]), 1)


def widen_second(weight: Quantized, some: Pieces) -> Quantized:
    """The second Linear's weight with rows for the pieces."""
    integers = np.concatenate([weight.integers, weight.integers[some.units]], 0)
    return weight._replace(integers=integers)


def fit(program: ProgramDesc, arrays: Parameters, widened: Mapping[str, str]) -> ProgramDesc:
    """The program, fused or not, whose stored `arrays` became wider, with the dims that they have.

    widened: the weight of each feed-forward's first Linear, by that of the second.
    """
    program = programs.copy(program)
    block = program.blocks[0]
    for described in block.vars:
        if described.persistable and described.name in arrays:
            described.type.lod_tensor.tensor.dims[:] = arrays[described.name].shape
    for second, first in widened.items():
        for name in _between(block, first, second):
            programs.tensor(block, name).dims[-1] = arrays[first].shape[1]
    return program


def _between(block: BlockDesc, first: str, second: str) -> list[str]:
    """What is computed of the weight `first` before the product with `second`."""
    weights, computed = {second}, [first]
    for op in block.ops:
        read, written = set(programs.read_by(op)), programs.written_by(op)
        if read & weights:
            weights.update(() if read & set(computed) else written)
        elif read & set(computed):
            computed += written
    return computed[1:]
