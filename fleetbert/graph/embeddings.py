"""What a BERT's first operators do, in NumPy: the sum of the embeddings. What attention's
mask is then, `packing.PackedLayout` says.

For one text of 26 tokens Paddle's twelve small operators take 0.23 ms of the 0.98 that MiniLM's
first layer takes in int8; NumPy takes 0.05. For 2,048 tokens both take as long. The answers are the
same bit for bit.
"""

from __future__ import annotations

from typing import Mapping, NamedTuple, Sequence, Union

import numpy as np

from fleetbert.graph import bfloat16, weights
from fleetbert.graph import program as programs
from fleetbert.graph.program import OpDesc, Parameters, ProgramDesc

# float32 [entries, width], bfloat16 as uint16, or integers with a scale for each entry: of 250,000
# words these take 96 MB instead of 384, and only the rows of a text are widened.
Table = Union[np.ndarray, weights.Quantized]


class Start(NamedTuple):
    """The rest of a program, its parameters, and the names of its inputs: the state of all tokens
    and the mask.

    tables: of words, positions and types, for `add_up`; none for a group of later layers, whose
    input are hidden states.
    """

    program: ProgramDesc
    parameters: Parameters
    inputs: tuple[str, str]
    tables: list[Table]


def integer_tables(
    program: ProgramDesc, quantized: Mapping[str, weights.Quantized]
) -> dict[str, weights.Quantized]:
    """The table of words, if a program looks it up and it is of integers."""
    names = (name for name in words(program) if name in quantized)
    return {name: quantized[name] for name in names if quantized[name].axis == 0}


def words(program: ProgramDesc) -> list[str]:
    """The name of the table of words, if a program looks it up."""
    return _tables(program)[:1]


def take_out(
    program: ProgramDesc, parameters: Parameters, apart: Mapping[str, Table] | None = None
) -> Start:
    """Take the first operators out of a BERT, or of a group of its layers (`cut_groups`).

    apart: tables that `parameters` need not have.
    """
    block = program.blocks[0]
    mask = _compare(program)
    while mask.type != "unsqueeze2":
        (mask,) = programs.consumers(block, programs.argument(mask.outputs, "Out"))
    names = _tables(program)
    if names:
        norm = next(op for op in block.ops if op.type == "layer_norm")
        state = programs.argument(norm.inputs, "X")
    else:
        (state,) = set(programs.input_names(program)) - {"input_ids"}
    inputs = (state, programs.argument(mask.outputs, "Out"))
    rest = programs.cut(program, inputs, programs.output_names(program))
    kept = weights.OnReading(programs.parameter_names(rest), parameters.__getitem__)
    tables = dict(apart or {})
    for name in names:
        if name not in tables:
            tables[name] = np.ascontiguousarray(parameters[name], np.float32)
    return Start(rest, kept, inputs, [tables[name] for name in names])


def pad_id(program: ProgramDesc, parameters: Parameters) -> int:
    """The token that a BERT, or a group of its layers, takes for padding."""
    return parameters[programs.argument(_compare(program).inputs, "Y")].item()


def add_up(
    tables: Sequence[Table],
    input_ids: np.ndarray,
    token_type_ids: np.ndarray,
    position_ids: np.ndarray,
) -> np.ndarray:
    """The sum of three embeddings, float32 [..., width] (Devlin et al. 2019, figure 2), of integers
    [...]; position_ids may be those of one text.

    tables: of words, positions and types. IndexError for an id that its table does not have.
    """
    words, positions, types = tables
    if min(input_ids.min(), token_type_ids.min()) < 0:
        raise IndexError("a token id or type is negative")
    total = _rows(words, input_ids)
    total += _rows(positions, position_ids)
    total += _rows(types, token_type_ids if token_type_ids.any() else np.zeros((), np.int64))
    return total


def _rows(table: Table, ids: np.ndarray) -> np.ndarray:
    if isinstance(table, np.ndarray):
        rows = table.take(ids, 0)
        return bfloat16.widened(rows) if rows.dtype == np.uint16 else rows
    integers = table.integers.take(ids, 0)
    step = table.scales.take(ids) / np.float32(weights.largest_integer(8 * integers.itemsize))
    return integers.astype(np.float32) * step[..., None]  # bit by bit as `weights.widen`


def _compare(program: ProgramDesc) -> OpDesc:
    """The operator that finds padding."""
    return next(op for op in program.blocks[0].ops if op.type == "equal")


def _tables(program: ProgramDesc) -> list[str]:
    """The tables of words, positions and types: Paddle computes the positions in between."""
    tables = {
        programs.argument(op.inputs, "Ids"): programs.argument(op.inputs, "W")
        for op in program.blocks[0].ops
        if op.type == "lookup_table_v2"
    }
    words, types = tables.pop("input_ids", None), tables.pop("token_type_ids", None)
    return [name for name in (words, *tables.values(), types) if name is not None]
