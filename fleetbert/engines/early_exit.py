"""Early exit: a text leaves after the first group of layers whose head is certain of it.

The files and the method are described in `engines.exits`.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Callable, Iterator, NamedTuple, Sequence

import numpy as np

from fleetbert.compat import paddle_inference
from fleetbert.core.errors import UserError
from fleetbert.data.batching import SAFE_LENGTHS, needed_length, round_up
from fleetbert.data.packing import PackedLayout, pack, packed_layout
from fleetbert.engines import exit_heads, exits
from fleetbert.engines.engine import Batches, Engine, Inputs, Options, Result
from fleetbert.engines.exits import Settings, Text, Texts, Work
from fleetbert.engines.packed import Group, open_group
from fleetbert.engines.streams import Streams, first_batches
from fleetbert.graph import embeddings, single_row, weights
from fleetbert.graph import program as programs


class Done(NamedTuple):
    """What came of a batch: those that left, if any, and what goes on: the batch where none left,
    else texts."""

    left: Result | None
    stays: Work


class EarlyExitEngine(Engine):
    """An opened variant. One batch is answered at the variant's own speed by default."""

    early_exit: Settings

    def __init__(
        self,
        settings: Settings,
        streams: Sequence[Sequence[Group]],
        folder: Path,
        any_length: bool = False,
    ):
        """streams: the groups of each. folder: where the heads are. any_length: a single row needs
        no padding."""
        super().__init__()
        self.early_exit = settings
        self.groups = streams[0]
        self._any_length = any_length
        self._heads = exit_heads.load(folder)
        self._head = exit_heads.KINDS[settings.head]
        self._streams = Streams(streams, self._first_runs)

    def compute(self, inputs: Inputs, speed: float | None = None) -> np.ndarray:
        speed = self.early_exit.speed if speed is None else speed
        input_ids = inputs["input_ids"]
        batch = self._batch(np.arange(len(input_ids)), input_ids, inputs["token_type_ids"])
        if len(input_ids) == 1:
            return self._streams.start(self._through, batch, speed)()
        results = list(self._schedule(iter([batch]), speed, input_ids.size))
        outputs = np.empty((len(input_ids), results[0].outputs.shape[1]), np.float32)
        for result in results:
            outputs[result.numbers] = result.outputs
        return outputs

    def run_all(
        self, batches: Batches, speed: float | None = None, batch_tokens: int = 0
    ) -> Iterator[Result]:
        """Results of batches, in the order of leaving.

        The order and the batches that are put together depend on the texts, speed, batch_tokens
        and the number of streams only.
        """
        speed = self.early_exit.speed if speed is None else speed
        fresh = (self._batch(n, batch.input_ids, batch.token_type_ids) for n, batch in batches)
        with self._lock:
            yield from self._schedule(fresh, speed, batch_tokens)

    def _schedule(
        self, fresh: Iterator[Texts], speed: float, batch_tokens: int
    ) -> Iterator[Result]:
        queue = exits.Queue(fresh, len(self.early_exit.ends), batch_tokens)
        under_way: deque[tuple[int, Callable[[], Done]]] = deque()
        while True:
            work = queue.take(self._streams.count - len(under_way))
            if work is not None:
                under_way.append((work[0], self._streams.start(self._step, *work, speed)))
                continue
            if not under_way:
                return
            number, wait = under_way.popleft()
            done = wait()
            if done.left is not None:
                yield done.left
            queue.add(number + 1, done.stays)

    def _batch(self, numbers: np.ndarray, input_ids: np.ndarray, types: np.ndarray) -> Texts:
        real = input_ids != self.early_exit.pad_id
        length = needed_length(real) if self._any_length else real.shape[1]
        ids, types = input_ids[:, :length], types[:, :length]
        return Texts(numbers, ids, packed_layout(real[:, :length]), types)

    def _first_runs(self, groups: Sequence[Group]) -> None:
        for ids, types in first_batches(self.early_exit.pad_id):
            self._through(groups, self._batch(np.arange(len(ids)), ids, types), 0.0)

    def _through(self, groups: Sequence[Group], batch: Texts, speed: float) -> np.ndarray:
        """Outputs [texts, labels] of a batch whose texts stay together: one text, or speed 0."""
        ends = self.early_exit.ends
        state, other = batch.input_ids, batch.state
        former = None
        for group, end in zip(groups, ends):
            state, other = group(state, other, batch.layout), batch.input_ids
            if speed and end != ends[-1]:
                logits = self._head(self._heads[end], state, batch.layout)
                if exits.doubt(self.early_exit, logits, former)[0] < speed:
                    return logits
                former = logits
        return state

    def _step(self, groups: Sequence[Group], number: int, work: Work, speed: float) -> Done:
        """Take texts through the group of that number."""
        batch = work if isinstance(work, Texts) else self._together(work)
        pair = (batch.input_ids, batch.state)
        state = groups[number](*(pair if number == 0 else pair[::-1]), batch.layout)
        end = self.early_exit.ends[number]
        if end == self.early_exit.ends[-1]:
            return Done(Result(batch.numbers, state, end), [])
        batch = batch._replace(state=state)
        if not speed:
            return Done(None, batch)
        logits = self._head(self._heads[end], state, batch.layout)
        leave = exits.doubt(self.early_exit, logits, batch.former) < speed
        batch = batch._replace(former=logits)
        if not leave.any():
            return Done(None, batch)
        return Done(Result(batch.numbers[leave], logits[leave], end), exits.split(batch, ~leave))

    def _together(self, texts: list[Text]) -> Texts:
        """A batch of texts, the longest first."""
        length = round_up(texts[0].length, SAFE_LENGTHS)
        input_ids = np.full((len(texts), length), self.early_exit.pad_id, np.int64)
        for row, text in zip(input_ids, texts):
            row[: text.length] = text.input_ids[: text.length]
        numbers = np.array([text.number for text in texts])
        batch = self._batch(numbers, input_ids, input_ids)
        state = np.zeros((len(batch.layout.pack_index), texts[0].states.shape[1]), np.float32)
        for text, (begin,) in zip(texts, batch.layout.first.tolist()):
            state[begin : begin + len(text.states)] = text.states
        return batch._replace(state=state, former=np.stack([text.former for text in texts]))


def open_variant(folder: Path, options: Options) -> EarlyExitEngine:
    """Open the groups of layers in `folder` on oneDNN."""
    if options.device != "cpu":
        raise UserError("an early-exit variant runs on CPUs (oneDNN); use --device cpu")
    settings = exits.load_settings(folder)
    quantized, others = weights.load(folder)
    parts = [programs.read(folder / exits.program_name(end)) for end in settings.ends]
    tables = embeddings.integer_tables(parts[0], quantized)
    groups = [
        open_group(
            part,
            weights.pick(quantized, others, part, tables),
            options.threads,
            options.streams,
            tables,
        )
        for part in parts
    ]
    paddle_inference.ease_numpy()
    any_length = single_row.fits(parts[0])
    return EarlyExitEngine(settings, list(zip(*groups)), folder, any_length)


def of_rows(run: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Group:
    """A group, of one that takes and gives states with padding, float32 [texts, length, width]."""

    def group(first: np.ndarray, second: np.ndarray, layout: PackedLayout) -> np.ndarray:
        states = run(first[layout.unpack_index] if first.dtype.kind == "f" else first, second)
        return pack(states, layout) if states.ndim == 3 else states

    return group
