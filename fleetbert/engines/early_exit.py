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
from fleetbert.data import ragged
from fleetbert.data.batching import padded_size
from fleetbert.data.packing import PackedLayout, pack, packed_layout
from fleetbert.data.ragged import Texts
from fleetbert.engines import exit_heads, exits, predictor
from fleetbert.engines.engine import Engine, Options, Result, Shapes
from fleetbert.engines.exits import Batch, Settings, Text, Work
from fleetbert.engines.packed import Group, open_group
from fleetbert.engines.rows import in_parts
from fleetbert.engines.streams import Streams, first_batches
from fleetbert.graph import embeddings, weights
from fleetbert.graph import program as programs
from fleetbert.graph.groups import cut_groups
from fleetbert.graph.program import ProgramDesc
from fleetbert.tasks.answer import by_text


class Done(NamedTuple):
    """What came of a batch: those that left, if any, and what goes on: the batch where none left,
    else texts."""

    left: Result | None
    stays: Work


class EarlyExitEngine(Engine):
    """An opened variant. One batch is answered at the variant's own speed by default."""

    early_exit: Settings

    def __init__(self, settings: Settings, streams: Sequence[Sequence[Group]], folder: Path):
        """streams: the groups of each. folder: where the heads are."""
        super().__init__()
        self.early_exit = settings
        self.groups = streams[0]
        self._heads = exit_heads.load(folder)
        self._head = exit_heads.KINDS[settings.head]
        self._streams = Streams(streams, self._first_runs)

    def compute(self, texts: Texts, speed: float | None = None) -> np.ndarray:
        speed = self.early_exit.speed if speed is None else speed
        batch = self._batch(np.arange(len(texts.lengths)), texts)
        if len(texts.lengths) == 1:
            return self._streams.start(self._through, batch, speed)()
        results = list(self._schedule(iter([batch]), speed, padded_size(texts.lengths)))
        first = results[0].outputs
        outputs = np.empty((len(texts.lengths), *first.shape[1:]), first.dtype)
        for result in results:
            outputs[result.numbers] = result.outputs
        return outputs

    def run_all(
        self,
        texts: Texts,
        speed: float | None = None,
        batch_tokens: int = 0,
        shapes: Shapes | None = None,
    ) -> Iterator[Result]:
        """Results of batches, in the order of leaving.

        The order and the batches that are put together depend on the texts, speed, batch_tokens
        and the number of streams only.
        """
        speed = self.early_exit.speed if speed is None else speed
        batch_tokens = batch_tokens or padded_size(texts.lengths)
        with self._lock:
            yield from self._schedule(self._fresh(texts, batch_tokens, shapes), speed, batch_tokens)

    def _fresh(self, texts: Texts, batch_tokens: int, shapes: Shapes | None) -> Iterator[Batch]:
        for numbers, part in in_parts(texts, batch_tokens):
            batch = self._batch(numbers, part)
            if shapes is not None:
                shapes.append(batch.layout.shape)
            yield batch

    def _schedule(
        self, fresh: Iterator[Batch], speed: float, batch_tokens: int
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

    def _batch(self, numbers: np.ndarray, texts: Texts) -> Batch:
        return Batch(numbers, texts, packed_layout(texts.lengths))

    def _first_runs(self, groups: Sequence[Group]) -> None:
        for texts in first_batches():
            self._through(groups, self._batch(np.arange(len(texts.lengths)), texts), 0.0)

    def _through(self, groups: Sequence[Group], batch: Batch, speed: float) -> np.ndarray:
        """Outputs of a batch whose texts stay together: one text, or speed 0."""
        ends = self.early_exit.ends
        states = former = None
        for group, end in zip(groups, ends):
            states = group(states, batch.texts, batch.layout)
            if speed and end != ends[-1]:
                logits = self._head(self._heads[end], states, batch.layout)
                if exits.doubt(self.early_exit, logits, former)[0] < speed:
                    return logits
                former = logits
        assert states is not None
        return self.last(states, batch.layout)

    def last(self, outputs: np.ndarray, layout: PackedLayout) -> np.ndarray:
        """What the last group gives of a batch, as `Engine.run` has it."""
        if self.early_exit.head != "tokens":
            return outputs
        return by_text(outputs[layout.places], layout.lengths)

    def _step(self, groups: Sequence[Group], number: int, work: Work, speed: float) -> Done:
        """Take texts through the group of that number."""
        batch = work if isinstance(work, Batch) else self._together(work)
        states = groups[number](batch.states, batch.texts, batch.layout)
        end = self.early_exit.ends[number]
        if end == self.early_exit.ends[-1]:
            return Done(Result(batch.numbers, self.last(states, batch.layout), end), [])
        batch = batch._replace(states=states)
        if not speed:
            return Done(None, batch)
        logits = self._head(self._heads[end], states, batch.layout)
        leave = exits.doubt(self.early_exit, logits, batch.former) < speed
        batch = batch._replace(former=logits)
        if not leave.any():
            return Done(None, batch)
        return Done(Result(batch.numbers[leave], logits[leave], end), exits.split(batch, ~leave))

    def _together(self, texts: list[Text]) -> Batch:
        """A batch of texts, the longest first."""
        lengths = np.array([len(text.ids) for text in texts])
        ids = np.concatenate([text.ids for text in texts])
        numbers = np.array([text.number for text in texts])
        batch = self._batch(numbers, Texts(ids, lengths, lengths))  # segments: before group 0 only
        states = pack(np.concatenate([text.states for text in texts]), batch.layout)
        former = [text.former for text in texts]
        if self.early_exit.head == "tokens":
            return batch._replace(states=states, former=by_text(np.concatenate(former), lengths))
        return batch._replace(states=states, former=np.stack(former))


def open_variant(folder: Path, options: Options) -> EarlyExitEngine:
    """Open the groups of layers in `folder` on oneDNN; on a card those of the program that they
    were made from."""
    settings = exits.load_settings(folder)
    quantized, others = weights.load(folder)
    if options.device.card is not None:
        if quantized:
            raise UserError("on a GPU early exit computes in floats: name early-exit-float32")
        on_card = _on_card(folder.parent / "float32", settings, options)
        return EarlyExitEngine(settings, [on_card], folder)
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
    return EarlyExitEngine(settings, list(zip(*groups)), folder)


def _on_card(source: Path, settings: Settings, options: Options) -> list[Group]:
    """The groups of layers of the program in `source`, which compute of rows with padding."""
    program, arrays = programs.read_model(source)

    def open_part(part: ProgramDesc) -> Group:
        stored = {name: arrays[name] for name in programs.parameter_names(part)}
        device, threads = options.device, options.threads
        opened = predictor.create_from_memory(part, stored, device, threads, optimize=True)
        predict = predictor.bind(opened, programs.input_names(part), device)
        return of_rows(lambda *rows: predict(*rows)[0], settings.pad_id)

    return [open_part(part) for _, part in cut_groups(program, settings.ends)]


def of_rows(run: Callable[[np.ndarray, np.ndarray], np.ndarray], pad_id: int) -> Group:
    """A group, of one that computes of rows with padding: from token ids and types, or from states
    [texts, length, width] and token ids; it gives such states, or outputs."""

    def group(states: np.ndarray | None, texts: Texts, layout: PackedLayout) -> np.ndarray:
        input_ids, types, mask = ragged.pad(texts, pad_id)
        if states is None:
            outputs = run(input_ids, types)
        else:
            rows = np.zeros((*mask.shape, states.shape[-1]), np.float32)
            rows[mask > 0] = states[layout.places]
            outputs = run(rows, input_ids)
        return pack(outputs[mask > 0], layout) if outputs.ndim == 3 else outputs

    return group
