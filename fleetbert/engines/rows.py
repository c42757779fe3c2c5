"""The engine of programs whose texts share rows: in int8, as `graph.int8` wrote them, and in
bfloat16, as `graph.bfloat16` marks them, both through oneDNN.

A batch is answered in parts of like length: where lengths differ much, a call for the short texts
and one for the long ones cost less than having them share long rows. Parts of several batches are
answered side by side (`engines.streams`).
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Callable, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from fleetbert.compat import paddle_inference, processor
from fleetbert.core.errors import UserError
from fleetbert.data.batching import (
    CALL_TOKENS,
    SAFE_LENGTHS,
    Batch,
    cut_by_length,
    needed_length,
    round_up,
    row_lengths,
)
from fleetbert.data.packing import packed_layout
from fleetbert.engines.engine import Batches, Engine, Inputs, Options, Result, of_own
from fleetbert.engines.packed import Group, open_group
from fleetbert.engines.streams import Streams, first_batches
from fleetbert.graph import bfloat16, embeddings, first_token, single_row, weights
from fleetbert.graph import program as programs
from fleetbert.graph.embeddings import Table
from fleetbert.graph.program import Parameters, ProgramDesc


class Pending(NamedTuple):
    """A batch under way: its shape, which rows its parts have, and what waits for the outputs of
    each."""

    shape: tuple[int, ...]
    rows: list[np.ndarray]
    outputs: list[Callable[[], np.ndarray]]


class RowsEngine(Engine):
    """An opened program."""

    def __init__(
        self, groups: Sequence[Group], pad_id: int, any_length: bool, per_token: bool = False
    ):
        """groups: the whole program, once or a stream for each thread (`packed.open_group`).
        any_length: a single row needs no padding. per_token: the program's outputs are of tokens.
        """
        super().__init__()
        self._per_token = per_token
        self._pad_id = pad_id
        self._any_length = any_length
        self._streams = Streams(groups, self._first_runs)

    def compute(self, inputs: Inputs, speed: float | None = None) -> np.ndarray:
        return _end(self._begin(inputs["input_ids"], inputs["token_type_ids"]))

    def run_all(
        self, batches: Batches, speed: float | None = None, batch_tokens: int = 0
    ) -> Iterator[Result]:
        """Results of batches, in their order."""
        pending: deque[tuple[np.ndarray, Batch, Pending]] = deque()

        def end() -> Result:
            numbers, batch, begun = pending.popleft()
            return Result(numbers, of_own(_end(begun), batch), 0)

        with self._lock:
            for numbers, batch in batches:
                begun = self._begin(batch.input_ids, batch.token_type_ids)
                pending.append((numbers, batch, begun))
                if len(pending) > self._streams.count:
                    yield end()
            while pending:
                yield end()

    def _begin(self, input_ids: np.ndarray, token_type_ids: np.ndarray) -> Pending:
        paddle_inference.check_length(input_ids.shape[1])
        real = input_ids != self._pad_id
        lengths = row_lengths(real)
        rows = cut_by_length(lengths, CALL_TOKENS)
        parts = []
        for part in rows:
            length = round_up(int(lengths[part].max()), SAFE_LENGTHS)
            if self._any_length:
                length = needed_length(real[part, :length])
            parts.append((input_ids[part, :length], token_type_ids[part, :length]))
        waiting = [self._streams.start(self._answer, *part) for part in parts]
        return Pending(input_ids.shape, rows, waiting)

    def _answer(self, group: Group, ids: np.ndarray, types: np.ndarray) -> np.ndarray:
        layout = packed_layout(ids != self._pad_id)
        outputs = group(ids, types, layout)
        return outputs[layout.unpack_index] if self._per_token else outputs

    def _first_runs(self, group: Group) -> None:
        for ids, types in first_batches(self._pad_id):
            self._answer(group, ids, types)


def open_int8(folder: Path, options: Options) -> RowsEngine:
    """Open x86.pdmodel and weights.safetensors in `folder`.

    oneDNN wants float32 weights and makes integers of them: the very ones that are on disk.
    """
    if options.device != "cpu":
        raise UserError("an int8 variant of this kind runs on CPUs (oneDNN); use --device cpu")
    program = programs.read(folder / "x86.pdmodel")
    quantized, others = weights.load(folder)
    tables = embeddings.integer_tables(program, quantized)
    return _open(program, weights.pick(quantized, others, program, tables), options, tables)


def open_bfloat16(folder: Path, options: Options) -> RowsEngine:
    """Open x86.pdmodel and weights.safetensors in `folder`; UserError on processors without
    bfloat16, where oneDNN would emulate it.

    oneDNN wants float32 weights and rounds them: to the very ones that are on disk.
    """
    if options.device != "cpu":
        raise UserError("a bfloat16 variant runs on CPUs (oneDNN); use --device cpu")
    processor.check(processor.BFLOAT16, "a bfloat16 variant")
    program = programs.read(folder / "x86.pdmodel")
    halves, others = weights.load_halves(folder)
    tables = {name: halves.pop(name) for name in embeddings.words(program) if name in halves}
    parameters = {**others, **{name: bfloat16.widened(one) for name, one in halves.items()}}
    return _open(program, parameters, options, tables)


def _open(
    program: ProgramDesc, parameters: Parameters, options: Options, apart: Mapping[str, Table]
) -> RowsEngine:
    """Open a program whose passes have been run. apart: tables that `parameters` need not have."""
    pad_id = embeddings.pad_id(program, parameters)
    groups = open_group(program, parameters, options.threads, options.streams, apart)
    any_length = single_row.fits(program)
    return RowsEngine(groups, pad_id, any_length, first_token.is_per_token(program))


def _end(pending: Pending) -> np.ndarray:
    """The outputs in the order of the batch's rows."""
    parts = [wait() for wait in pending.outputs]
    if parts[0].ndim == 3:  # each of its own length
        outputs = np.zeros((*pending.shape, parts[0].shape[-1]), np.float32)
        for rows, part in zip(pending.rows, parts):
            outputs[rows, : part.shape[1]] = part
        return outputs
    return np.concatenate(parts)[np.argsort(np.concatenate(pending.rows))]
