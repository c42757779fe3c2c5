"""What tests of programs and engines share: texts to ask, both ways to run a program, and what its
layers compute by their definition."""

from __future__ import annotations

from typing import Callable, Mapping, NamedTuple, Sequence

import numpy as np
from activation import FORMULAS

from fleetbert.data import ragged
from fleetbert.data.packing import PackedLayout, packed_layout
from fleetbert.data.ragged import Texts
from fleetbert.engines import predictor
from fleetbert.engines.alike import random_batch
from fleetbert.engines.packed import open_group
from fleetbert.graph import program as programs
from fleetbert.graph.embeddings import Table
from fleetbert.graph.program import OpDesc, Parameters, ProgramDesc

VOCAB_SIZE = 195
INPUTS = ("input_ids", "token_type_ids")
ACTIVATIONS = {"": lambda x: x, "gelu_erf": FORMULAS["gelu"], "tanh": np.tanh}


class Linear(NamedTuple):
    """A linear layer: the variables that it reads and writes, and what it computes with."""

    source: str
    target: str
    weight: str
    bias: np.ndarray
    activation: Callable[[np.ndarray], np.ndarray]


def linear(op: OpDesc, parameters: Parameters) -> Linear:
    source, weight, bias = (programs.argument(op.inputs, slot) for slot in ("Input", "W", "Bias"))
    target = programs.argument(op.outputs, "Out")
    named = [one.s for one in op.attrs if one.name == "fuse_activation"]
    return Linear(source, target, weight, parameters[bias], ACTIVATIONS["".join(named)])


def make_batch(lengths: Sequence[int], length: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random texts of so many tokens, padded to `length`, or to the longest."""
    shape = (len(lengths), length or max(lengths))
    ids, types = random_batch(np.random.default_rng(lengths), shape, VOCAB_SIZE)
    ids[np.arange(shape[1]) >= np.array(lengths)[:, None]] = 0
    return ids, types


def texts_of(ids: np.ndarray, types: np.ndarray | None = None) -> Texts:
    """The same for an engine: of a text in each row, 0 after its end."""
    types = np.zeros_like(ids) if types is None else types
    return ragged.unpad(ids, types, ragged.mask_of(ids, 0))


def layout_of(ids: np.ndarray) -> PackedLayout:
    """Of the rows that these share."""
    return packed_layout(texts_of(ids).lengths)


def ask(
    program: ProgramDesc, parameters: Parameters, *inputs: np.ndarray, outputs: Sequence[str] = ()
) -> list[np.ndarray]:
    """What all operators of a program give in Paddle as they are; outputs: other variables."""
    if outputs:
        program = programs.cut(program, INPUTS, outputs)
    return predictor.open_as_it_is(program, parameters, 1)(*inputs)


def ask_rows(
    program: ProgramDesc,
    parameters: Parameters,
    ids: np.ndarray,
    types: np.ndarray,
    apart: Mapping[str, Table] | None = None,
) -> np.ndarray:
    """The same as engines run it, with texts that share rows."""
    (run,) = open_group(program, parameters, 1, apart=apart)
    return run(None, texts_of(ids, types), layout_of(ids))
