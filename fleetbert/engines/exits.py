"""Early exit: a text leaves after the first group of layers whose head is certain of it.

The scheduler of a variant `early-exit-...`. Texts go through the groups of layers in batches; after
each group those whose uncertainty is under `speed` leave, and the others of many batches are put
together into full batches again, by length, for the next group. Without that, the batches would
shrink as texts leave, and with them what leaving gains.

Files in the variant's folder: exits.json (`Settings`), heads.safetensors (`engines.heads`),
group-N.pdmodel (N is the group's last layer), weights.safetensors (`graph.weights`). For Paddle
Lite group-N.nb takes the place of these two.

Method: FastBERT (Liu et al. 2020): uncertainty is the entropy of the answer divided by the
largest possible one (section 3.3).
"""

from __future__ import annotations

import json
import math
from collections import deque
from pathlib import Path
from typing import Callable, Iterable, Iterator, List, NamedTuple, Sequence, Union

import numpy as np

from fleetbert.data.batching import SAFE_LENGTHS, Batch, needed_length, round_up, row_lengths
from fleetbert.data.packing import PackedLayout, pack, packed_layout
from fleetbert.engines import heads
from fleetbert.engines.streams import Streams, first_batches

NAME = "exits.json"
# Batches that go through the groups together, one group after the other: more of them fill deep
# groups' batches better, and a group's weights stay near.
WINDOW_BATCHES = 16
# The states of a whole batch stay in memory while so many of its texts wait; of fewer theirs alone.
LARGE_SHARE = 0.25
# A group of layers: (input_ids, token_type_ids, places) of a batch → states for the first one,
# (states, input_ids, places) for the others; the last gives logits [texts, labels]. States are
# float32 [tokens, width], in the line that the places describe.
Group = Callable[[np.ndarray, np.ndarray, PackedLayout], np.ndarray]


class Settings(NamedTuple):
    """ends: the last layer of each group; head: which of `heads.KINDS`; speed: the default;
    pad_id: the token that is padding."""

    ends: list[int]
    head: str
    speed: float
    pad_id: int


class Part(NamedTuple):
    """Texts that have left: their numbers, logits [texts, labels], the layer they left after."""

    numbers: np.ndarray
    logits: np.ndarray
    layer: int


class _Batch(NamedTuple):
    """Texts before a group: numbers [texts], input_ids [texts, length], where these are in a line,
    and what the group computes from: token_type_ids before the first, else states."""

    numbers: np.ndarray
    input_ids: np.ndarray
    places: PackedLayout
    state: np.ndarray


class _Text(NamedTuple):
    """One that waits for others: its number, input_ids [at least length] and states [tokens,
    width]."""

    length: int
    number: int
    input_ids: np.ndarray
    states: np.ndarray


# What a stream is given: a batch, or texts to make one of.
_Work = Union[_Batch, List[_Text]]


class _Done(NamedTuple):
    """What came of a batch: those that left, if any, and what goes on: the batch where none left,
    else texts."""

    left: Part | None
    stays: _Work


class EarlyExit:
    """An opened variant. As a function it answers one batch, by default at the variant's own
    speed."""

    def __init__(
        self,
        settings: Settings,
        chains: Sequence[Sequence[Group]],
        folder: Path,
        any_length: bool = False,
    ):
        """chains: the groups of each stream. any_length: a row alone needs no padding."""
        self.settings = settings
        self.groups = chains[0]
        self._any_length = any_length
        self._heads = heads.load(folder)
        self._head = heads.KINDS[settings.head]
        self._streams = Streams(chains, self._warm_up)

    def __call__(
        self, input_ids: np.ndarray, token_type_ids: np.ndarray, speed: float | None = None
    ) -> np.ndarray:
        speed = self.settings.speed if speed is None else speed
        batch = self._batch(np.arange(len(input_ids)), input_ids, token_type_ids)
        if len(input_ids) == 1:
            return self._streams.start(self._through, batch, speed)()
        parts = list(self._run(iter([batch]), speed, input_ids.size))
        logits = np.empty((len(input_ids), parts[0].logits.shape[1]), np.float32)
        for part in parts:
            logits[part.numbers] = part.logits
        return logits

    def run_all(
        self,
        batches: Iterable[tuple[np.ndarray, Batch]],
        speed: float | None,
        batch_tokens: int,
    ) -> Iterator[Part]:
        """Answers of batches, each with the numbers of its texts, in the order of leaving.

        speed: 0 leaves no text early; None is the variant's own. batch_tokens: of the batches that
        are put together. The order and the batches depend on these, the texts and the number of
        streams only.
        """
        speed = self.settings.speed if speed is None else speed
        fresh = (self._batch(n, batch.input_ids, batch.token_type_ids) for n, batch in batches)
        yield from self._run(fresh, speed, batch_tokens)

    def _run(self, fresh: Iterator[_Batch], speed: float, batch_tokens: int) -> Iterator[Part]:
        waiting = _Waiting(fresh, len(self.settings.ends), batch_tokens)
        under_way: deque[tuple[int, Callable[[], _Done]]] = deque()
        while True:
            work = waiting.take(self._streams.count - len(under_way))
            if work is not None:
                under_way.append((work[0], self._streams.start(self._step, *work, speed)))
                continue
            if not under_way:
                return
            number, result = under_way.popleft()
            done = result()
            if done.left is not None:
                yield done.left
            waiting.add(number + 1, done.stays)

    def _batch(self, numbers: np.ndarray, input_ids: np.ndarray, types: np.ndarray) -> _Batch:
        real = input_ids != self.settings.pad_id
        length = needed_length(real) if self._any_length else real.shape[1]
        ids, types = input_ids[:, :length], types[:, :length]
        return _Batch(numbers, ids, packed_layout(real[:, :length]), types)

    def _warm_up(self, groups: Sequence[Group]) -> None:
        for ids, types in first_batches(self.settings.pad_id):
            self._through(groups, self._batch(np.arange(len(ids)), ids, types), 0.0)

    def _through(self, groups: Sequence[Group], batch: _Batch, speed: float) -> np.ndarray:
        """Logits [texts, labels] of a batch whose texts stay together: one text, or speed 0."""
        ends = self.settings.ends
        state, other = batch.input_ids, batch.state
        for group, end in zip(groups, ends):
            state, other = group(state, other, batch.places), batch.input_ids
            if speed and end != ends[-1]:
                logits = self._head(self._heads[end], state, batch.places)
                if uncertainty(logits)[0] < speed:
                    return logits
        return state

    def _step(self, groups: Sequence[Group], number: int, work: _Work, speed: float) -> _Done:
        """Take texts through the group of that number."""
        batch = work if isinstance(work, _Batch) else self._together(work)
        pair = (batch.input_ids, batch.state)
        state = groups[number](*(pair if number == 0 else pair[::-1]), batch.places)
        end = self.settings.ends[number]
        if end == self.settings.ends[-1]:
            return _Done(Part(batch.numbers, state, end), [])
        batch = batch._replace(state=state)
        if not speed:
            return _Done(None, batch)
        logits = self._head(self._heads[end], state, batch.places)
        leave = uncertainty(logits) < speed
        if not leave.any():
            return _Done(None, batch)
        return _Done(Part(batch.numbers[leave], logits[leave], end), _texts(batch, ~leave))

    def _together(self, texts: list[_Text]) -> _Batch:
        """A batch of texts, the longest first."""
        length = round_up(texts[0].length, SAFE_LENGTHS)
        input_ids = np.full((len(texts), length), self.settings.pad_id, np.int64)
        for row, text in zip(input_ids, texts):
            row[: text.length] = text.input_ids[: text.length]
        numbers = np.array([text.number for text in texts])
        batch = self._batch(numbers, input_ids, input_ids)
        state = np.zeros((len(batch.places.pack_index), texts[0].states.shape[1]), np.float32)
        for text, (begin,) in zip(texts, batch.places.first.tolist()):
            state[begin : begin + len(text.states)] = text.states
        return batch._replace(state=state)


class _Waiting:
    """What is to be done next: new batches, and what waits between groups."""

    def __init__(self, fresh: Iterator[_Batch], groups: int, batch_tokens: int):
        self._fresh = fresh
        self._taken = 0  # of this window
        self._batch_tokens = batch_tokens
        self._whole: list[tuple[int, _Batch]] = []
        self._texts: list[list[_Text]] = [[] for _ in range(groups)]  # before each group

    def add(self, number: int, work: _Work) -> None:
        """What is to go through the group of that number."""
        if isinstance(work, _Batch):
            self._whole.append((number, work))
        elif work:
            self._texts[number] = sorted(self._texts[number] + work, key=lambda text: -text.length)

    def take(self, idle: int) -> tuple[int, _Work] | None:
        """The number of the next group, and what is to go through it; idle: streams that have
        nothing to do, which share out what is left at the end. With none of them idle, one batch
        more is given to wait for the first, but none that is not full."""
        if idle < 0:
            return None
        if self._taken < WINDOW_BATCHES:
            batch = next(self._fresh, None)
            if batch is not None:
                self._taken += 1
                return 0, batch
        if self._whole:
            return self._whole.pop(0)
        for number, texts in enumerate(self._texts):
            if texts and len(texts) >= self._rows(texts):
                return number, self._cut(number, self._rows(texts))
        for number, texts in enumerate(self._texts):
            if texts and idle:
                return number, self._cut(number, -(-len(texts) // idle))
        if idle and self._taken == WINDOW_BATCHES:
            self._taken = 0
            return self.take(idle)
        return None

    def _rows(self, texts: list[_Text]) -> int:
        """How many a full batch has."""
        return max(1, self._batch_tokens // round_up(texts[0].length, SAFE_LENGTHS))

    def _cut(self, number: int, count: int) -> list[_Text]:
        texts = self._texts[number]
        self._texts[number] = texts[count:]
        return texts[:count]


def _texts(batch: _Batch, chosen: np.ndarray) -> list[_Text]:
    """Those of a batch that are chosen (bool [texts])."""
    found = zip(
        row_lengths(batch.places.real[chosen]).tolist(),
        batch.numbers[chosen].tolist(),
        batch.input_ids[chosen],
        batch.places.first[chosen, 0].tolist(),
        batch.places.counts[chosen].tolist(),
    )
    texts = [
        _Text(length, number, ids, batch.state[first : first + count])
        for length, number, ids, first, count in found
    ]
    if np.count_nonzero(chosen) < LARGE_SHARE * len(chosen):
        return [text._replace(states=text.states.copy()) for text in texts]
    return texts


def of_rows(run: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Group:
    """A group, of one that takes and gives states with padding, float32 [texts, length, width]."""

    def group(first: np.ndarray, second: np.ndarray, at: PackedLayout) -> np.ndarray:
        found = run(first[at.unpack_index] if first.dtype.kind == "f" else first, second)
        return pack(found, at) if found.ndim == 3 else found

    return group


def uncertainty(logits: np.ndarray) -> np.ndarray:
    """Entropy of the answers [texts, labels] over the largest possible one: 0 to 1, [texts]."""
    below = logits - np.logaddexp.reduce(logits, 1, keepdims=True)  # logarithms of the chances
    # np.log takes ten times as long for a number
    return np.add.reduce(np.exp(below) * below, 1) / -math.log(logits.shape[1])


def save_settings(folder: Path, settings: Settings) -> None:
    """Write exits.json."""
    text = json.dumps(settings._asdict(), indent=2) + "\n"
    (folder / NAME).write_text(text, encoding="utf-8")


def load_settings(folder: Path) -> Settings:
    """Read exits.json."""
    return Settings(**json.loads((folder / NAME).read_text(encoding="utf-8")))


def program_name(end: int, ending: str = "pdmodel") -> str:
    """The file of the group whose last layer is `end`."""
    return f"group-{end}.{ending}"
