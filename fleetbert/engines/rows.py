"""The engine of programs whose texts share rows: in int8, as `graph.int8` wrote them, and in
bfloat16, as `graph.bfloat16` marks them, both through oneDNN.

A batch is answered in parts of like length: where lengths differ much, a call for the short texts
and one for the long ones cost less than having them share long rows. Parts of several batches are
answered side by side (`engines.streams`).
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Callable, Iterator, Mapping, Sequence

import numpy as np

from fleetbert.compat import processor
from fleetbert.core.errors import UserError
from fleetbert.data.batching import CALL_TOKENS, cut_by_length, plan_inference
from fleetbert.data.packing import packed_layout
from fleetbert.data.ragged import Texts
from fleetbert.engines import paddle
from fleetbert.engines.engine import Engine, Options, Result, Shapes
from fleetbert.engines.packed import Group, open_group
from fleetbert.engines.streams import Streams, first_batches
from fleetbert.graph import bfloat16, embeddings, first_token, weights
from fleetbert.graph import program as programs
from fleetbert.graph.embeddings import Table
from fleetbert.graph.program import Parameters, ProgramDesc
from fleetbert.tasks.answer import by_text


class RowsEngine(Engine):
    """An opened program."""

    def __init__(self, groups: Sequence[Group], per_token: bool = False):
        """groups: the whole program, once or a stream for each thread (`packed.open_group`).
        per_token: the program's outputs are of tokens."""
        super().__init__()
        self._per_token = per_token
        self._streams = Streams(groups, self._first_runs)

    def compute(self, texts: Texts, speed: float | None = None) -> np.ndarray:
        numbers, outputs, _ = zip(*self._answer_all(texts, 0, None))
        return np.concatenate(outputs)[np.argsort(np.concatenate(numbers))]

    def run_all(
        self,
        texts: Texts,
        speed: float | None = None,
        batch_tokens: int = 0,
        shapes: Shapes | None = None,
    ) -> Iterator[Result]:
        """Results of parts (`in_parts`), in their order."""
        with self._lock:
            yield from self._answer_all(texts, batch_tokens, shapes)

    def _answer_all(
        self, texts: Texts, batch_tokens: int, shapes: Shapes | None
    ) -> Iterator[Result]:
        pending: deque[tuple[np.ndarray, Callable[[], np.ndarray]]] = deque()

        def end() -> Result:
            numbers, wait = pending.popleft()
            return Result(numbers, wait(), 0)

        for numbers, part in in_parts(texts, batch_tokens):
            pending.append((numbers, self._streams.start(self._answer, part, shapes)))
            if len(pending) > self._streams.count:
                yield end()
        while pending:
            yield end()

    def _answer(self, group: Group, texts: Texts, shapes: Shapes | None = None) -> np.ndarray:
        layout = packed_layout(texts.lengths)
        if shapes is not None:
            shapes.append(layout.shape)
        outputs = group(None, texts, layout)
        return by_text(outputs[layout.places], texts.lengths) if self._per_token else outputs

    def _first_runs(self, group: Group) -> None:
        for texts in first_batches():
            self._answer(group, texts)


def open_int8(folder: Path, options: Options) -> Engine:
    """Open x86.pdmodel and weights.safetensors in `folder`.

    oneDNN wants float32 weights and makes integers of them: the very ones that are on disk. On a
    card TensorRT computes what model.pdmodel says, with the same weights and scales.
    """
    if options.device.card is not None:
        if options.device.precision != "int8":
            raise UserError("an int8 variant computes in int8: set precision=int8 tensorrt=auto")
        program = programs.read(folder / "model.pdmodel")
        parameters = weights.parameters(folder, program)
        return paddle.open_parameters(folder, program, parameters, options)
    program = programs.read(folder / "x86.pdmodel")
    quantized, others = weights.load(folder)
    tables = embeddings.integer_tables(program, quantized)
    return _open(program, weights.pick(quantized, others, program, tables), options, tables)


def open_bfloat16(folder: Path, options: Options) -> RowsEngine:
    """Open x86.pdmodel and weights.safetensors in `folder`; UserError on processors without
    bfloat16, where oneDNN would emulate it.

    oneDNN wants float32 weights and rounds them: to the very ones that are on disk.
    """
    if options.device.card is not None:
        raise UserError(
            "a bfloat16 variant is for CPUs (oneDNN): on a GPU use variant float32 with "
            "precision=bfloat16"
        )
    processor.check(processor.BFLOAT16, "a bfloat16 variant")
    program = programs.read(folder / "x86.pdmodel")
    halves, others = weights.load_halves(folder)
    tables = {name: halves.pop(name) for name in embeddings.words(program) if name in halves}

    def make(name: str) -> np.ndarray:
        return bfloat16.widened(halves[name]) if name in halves else others[name]

    parameters = weights.OnReading([*others, *halves], make)
    return _open(program, parameters, options, tables)


def _open(
    program: ProgramDesc, parameters: Parameters, options: Options, apart: Mapping[str, Table]
) -> RowsEngine:
    """Open a program whose passes have been run. apart: tables that `parameters` need not have."""
    groups = open_group(program, parameters, options.threads, options.streams, apart)
    return RowsEngine(groups, first_token.is_per_token(program))


def in_parts(texts: Texts, batch_tokens: int) -> Iterator[tuple[np.ndarray, Texts]]:
    """Texts in parts that share rows, with their numbers: first in batches of like length
    (`plan_inference`), the longest first, unless all have no more than `batch_tokens` together or
    it is 0; then those are cut by length."""
    if not batch_tokens or 0 < texts.lengths.sum() <= batch_tokens:
        plan = [np.arange(len(texts.lengths))]
    else:
        plan = plan_inference(texts.lengths, batch_tokens)[::-1]
    parts = (n[part] for n in plan for part in cut_by_length(texts.lengths[n], CALL_TOKENS))
    return texts.parts(parts)
