"""Early exit: a text leaves after the first group of layers whose head is certain of it.

The scheduler of a variant `early-exit-...`. Texts go through the groups of layers in batches; after
each group those whose uncertainty is under `speed` leave, and the others of many batches are put
together into full batches again, by length, for the next group. Without that, the batches would
shrink as texts leave, and with them what leaving gains.

Files in the variant's folder: exits.json (`Settings`), heads.safetensors (`infer.heads`),
group-N.pdmodel (N is the group's last layer), weights.safetensors (`infer.weights`). For Paddle
Lite group-N.nb takes the place of these two.

Method: FastBERT (Liu et al. 2020): uncertainty is the entropy of the answer divided by the
largest possible one (section 3.3).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, NamedTuple

import numpy as np

from fleetbert.data.batching import (
    SAFE_LENGTHS,
    Batch,
    plan_inference,
    round_up,
    row_lengths,
    without_padding,
)
from fleetbert.infer import heads
from fleetbert.metrics import softmax

NAME = "exits.json"
# Tokens whose hidden states are held at once, in batches: more fill the batches of deep groups
# better. BERT-base's are 3 KB each.
WINDOW_BATCHES = 16


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


class _Waiting(NamedTuple):
    """A batch before a group: numbers [texts], input_ids [texts, length], which of these are no
    padding, and what the group computes from: token_type_ids before the first, else hidden
    states."""

    numbers: np.ndarray
    input_ids: np.ndarray
    real: np.ndarray
    state: np.ndarray


class EarlyExit:
    """An opened variant. As a function it answers one batch, by default at the variant's own
    speed."""

    def __init__(
        self,
        settings: Settings,
        groups: list[Callable[..., Any]],
        folder: Path,
        any_length: bool = False,
    ):
        """groups: each gives hidden states, the last one logits; of token ids and types the first,
        of hidden states and token ids the others. any_length: a row alone needs no padding."""
        self.settings = settings
        self.groups = groups
        self._any_length = any_length
        self._heads = heads.load(folder)
        self._head = heads.KINDS[settings.head]

    def __call__(
        self, input_ids: np.ndarray, token_type_ids: np.ndarray, speed: float | None = None
    ) -> np.ndarray:
        speed = self.settings.speed if speed is None else speed
        batch = self._waiting(np.arange(len(input_ids)), input_ids, token_type_ids)
        parts = list(self._through([batch], speed, input_ids.size))
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
        are put together.
        """
        speed = self.settings.speed if speed is None else speed
        window: list[_Waiting] = []
        for numbers, batch in batches:
            window.append(self._waiting(numbers, batch.input_ids, batch.token_type_ids))
            if len(window) == WINDOW_BATCHES:
                yield from self._through(window, speed, batch_tokens)
                window = []
        yield from self._through(window, speed, batch_tokens)

    def _waiting(self, numbers: np.ndarray, input_ids: np.ndarray, state: np.ndarray) -> _Waiting:
        if self._any_length:
            input_ids, state = without_padding(input_ids, state, self.settings.pad_id)
        return _Waiting(numbers, input_ids, input_ids != self.settings.pad_id, state)

    def _through(self, window: list[_Waiting], speed: float, batch_tokens: int) -> Iterator[Part]:
        """Batches are put together anew where texts have left them; otherwise they stay."""
        ends = self.settings.ends
        for number, end in enumerate(ends):
            stay = []
            left = 0
            for place, batch in enumerate(window):
                pair = (batch.input_ids, batch.state)
                state = self.groups[number](*(pair if number == 0 else pair[::-1]))
                if end == ends[-1]:
                    yield Part(batch.numbers, state, end)
                    continue
                window[place] = batch._replace(state=state)
                if speed > 0:
                    logits = self._head(self._heads[end], state, batch.real)
                    leave = uncertainty(logits) < speed
                    stay.append(~leave)
                    if np.count_nonzero(leave):
                        left += np.count_nonzero(leave)
                        yield Part(batch.numbers[leave], logits[leave], end)
            if left == sum(len(batch.numbers) for batch in window):
                return
            if left:
                window = self._together(window, stay, batch_tokens)

    def _together(
        self, window: list[_Waiting], stay: list[np.ndarray], batch_tokens: int
    ) -> list[_Waiting]:
        """The texts that stay (bool [texts] of each batch) in full batches, those of like length
        together."""
        source = np.repeat(np.arange(len(stay)), [np.count_nonzero(rows) for rows in stay])
        row = np.concatenate([np.flatnonzero(rows) for rows in stay])
        real = [batch.real[rows] for batch, rows in zip(window, stay)]
        lengths = np.concatenate([row_lengths(rows) for rows in real])
        return [
            self._gather(window, source[chosen], row[chosen], int(lengths[chosen].max()))
            for chosen in plan_inference(lengths, batch_tokens)
        ]

    def _gather(
        self, window: list[_Waiting], source: np.ndarray, row: np.ndarray, longest: int
    ) -> _Waiting:
        """One batch of the rows `row` of the batches `source`."""
        length = round_up(longest, SAFE_LENGTHS)
        numbers = np.empty(len(row), np.int64)
        input_ids = np.full((len(row), length), self.settings.pad_id, np.int64)
        state = np.empty((len(row), length, window[0].state.shape[2]), np.float32)
        for place, (number, one) in enumerate(zip(source.tolist(), row.tolist())):
            batch = window[number]
            shared = min(length, batch.input_ids.shape[1])
            numbers[place] = batch.numbers[one]
            input_ids[place, :shared] = batch.input_ids[one, :shared]
            state[place, :shared] = batch.state[one, :shared]
            state[place, shared:] = 0.0
        return self._waiting(numbers, input_ids, state)


def uncertainty(logits: np.ndarray) -> np.ndarray:
    """Entropy of the answers [texts, labels] over the largest possible one: 0 to 1, [texts]."""
    chances = softmax(logits)
    entropies = -(chances * np.log(np.maximum(chances, 1e-12))).sum(1)
    return entropies / math.log(logits.shape[1])  # np.log takes ten times as long for a number


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
