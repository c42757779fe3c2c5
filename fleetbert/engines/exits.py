"""Early exit's settings, and which texts go through a group of layers next.

Texts go through the groups of layers in batches; after each group those whose uncertainty is under
`speed` leave, and the others of many batches are put together into full batches again, by length,
for the next group. Without that, the batches would shrink as texts leave, and with them what
leaving gains.

Files in the variant's folder: exits.json (`Settings`), heads.safetensors (`engines.exit_heads`),
group-N.pdmodel (N is the group's last layer), weights.safetensors (`graph.weights`). For Paddle
Lite group-N.nb takes the place of these two.

Method: FastBERT (Liu et al. 2020): uncertainty is the entropy of the answer divided by the
largest possible one (section 3.3). Of several labels it is that of the label with the largest, of
tokens that of the token with the largest (SENTEE, Li et al. 2021); of numbers and vectors how much
the answer changed since the group before (as PABEE, Zhou et al. 2020, waits for answers that
agree).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Callable, Iterator, List, NamedTuple, Optional, Union

import numpy as np

from fleetbert.data.batching import SAFE_LENGTHS, round_up
from fleetbert.data.packing import PackedLayout
from fleetbert.data.ragged import Texts

NAME = "exits.json"
# Batches that go through the groups together, one group after the other: more of them fill deep
# groups' batches better, and a group's weights stay near.
WINDOW_BATCHES = 16
# The states of a whole batch stay in memory while so many of its texts wait; of fewer theirs alone.
LARGE_SHARE = 0.25


class Settings(NamedTuple):
    """ends: the last layer of each group; head: which of `heads.KINDS`; speed: the default;
    pad_id: the token that is padding; doubt: which of DOUBTS; spread: how far float32's answers are
    from their mean (`spread`)."""

    ends: list[int]
    head: str
    speed: float
    pad_id: int
    doubt: str = "entropy"
    spread: float = 1.0


class Batch(NamedTuple):
    """A batch before a group: numbers [texts], the texts and their layout, and what the group
    computes from: None before the first, else states [tokens of the rows, width]; former: what the
    head before answered, [texts, outputs] or of tokens an array of objects [texts]."""

    numbers: np.ndarray
    texts: Texts
    layout: PackedLayout
    states: np.ndarray | None = None
    former: np.ndarray | None = None


class Text(NamedTuple):
    """One that waits for others: its number, ids [tokens], states [tokens, width], and what the
    head before answered, [outputs] or [tokens, outputs]."""

    number: int
    ids: np.ndarray
    states: np.ndarray
    former: np.ndarray


# What is to go through a group: a batch, or texts to make one of.
Work = Union[Batch, List[Text]]


class Queue:
    """What is to be done next: new batches, and what waits between groups."""

    def __init__(self, fresh: Iterator[Batch], groups: int, batch_tokens: int):
        self._fresh = fresh
        self._taken = 0  # of this window
        self._batch_tokens = batch_tokens
        self._whole: list[tuple[int, Batch]] = []
        self._texts: list[list[Text]] = [[] for _ in range(groups)]  # before each group

    def add(self, number: int, work: Work) -> None:
        """What is to go through the group of that number."""
        if isinstance(work, Batch):
            self._whole.append((number, work))
        elif work:
            self._texts[number] = sorted(
                self._texts[number] + work, key=lambda text: -len(text.ids)
            )

    def take(self, idle: int) -> tuple[int, Work] | None:
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

    def _rows(self, texts: list[Text]) -> int:
        """How many a full batch has."""
        return max(1, self._batch_tokens // round_up(len(texts[0].ids), SAFE_LENGTHS))

    def _cut(self, number: int, count: int) -> list[Text]:
        texts = self._texts[number]
        self._texts[number] = texts[count:]
        return texts[:count]


def split(batch: Batch, chosen: np.ndarray) -> list[Text]:
    """The chosen texts (bool [texts]) of a batch that has states and `former`, one by one."""
    assert batch.states is not None and batch.former is not None
    numbers, first = batch.numbers.tolist(), batch.layout.first.tolist()
    ids = batch.texts.split()
    few = np.count_nonzero(chosen) < LARGE_SHARE * len(chosen)
    texts = []
    for place in np.flatnonzero(chosen).tolist():
        states = batch.states[first[place] : first[place] + len(ids[place])]
        states = states.copy() if few else states
        texts.append(Text(numbers[place], ids[place], states, batch.former[place]))
    return texts


def uncertainty(logits: np.ndarray) -> np.ndarray:
    """Entropy of the answers [texts, labels] over the largest possible one: 0 to 1, [texts]."""
    below = logits - np.logaddexp.reduce(logits, 1, keepdims=True)  # logarithms of the chances
    # np.log takes ten times as long for a number
    return np.add.reduce(np.exp(below) * below, 1) / -math.log(logits.shape[1])


def of_labels(logits: np.ndarray) -> np.ndarray:
    """The largest entropy of one label (multi-label classification) over the largest possible:
    0 to 1, [texts]."""
    below = -np.logaddexp(0, -logits), -np.logaddexp(0, logits)  # of having it, of not
    entropy = -sum(np.exp(log_chance) * log_chance for log_chance in below)
    largest: np.ndarray = np.max(entropy, axis=1) / math.log(2)
    return largest


def of_tokens(outputs: np.ndarray) -> np.ndarray:
    """The largest uncertainty of a token, 0 to 1, [texts], of an array of objects [texts], each
    [own tokens, labels]. The first and the last token are special ones, of which nothing is asked.
    """
    lengths = np.array([len(tokens) for tokens in outputs])
    each = uncertainty(np.concatenate(list(outputs)))
    ends = lengths.cumsum()
    each[ends - lengths] = each[ends - 1] = 0
    largest: np.ndarray = np.maximum.reduceat(each, ends - lengths)
    return largest


def spread(outputs: np.ndarray) -> float:
    """The root of the mean squared distance of outputs [texts, outputs] from their mean: of one
    number the standard deviation."""
    distances = np.square(outputs - outputs.mean(0)).sum(1)
    return max(float(np.sqrt(distances.mean())), 1e-6)


def doubt(settings: Settings, outputs: np.ndarray, former: np.ndarray | None) -> np.ndarray:
    """How unsure a head's outputs [texts, outputs] are, 0 to 1, [texts]; former: those of the head
    before, if there is one."""
    return DOUBTS[settings.doubt](outputs, former, settings.spread)


def _change(outputs: np.ndarray, former: np.ndarray | None, spread: float) -> np.ndarray:
    if former is None:  # nothing to compare with
        return np.ones(len(outputs))
    changed: np.ndarray = np.minimum(np.linalg.norm(outputs - former, axis=1) / spread, 1)
    return changed


# Of a head's outputs, those of the head before if there is one, and the spread of answers.
Doubt = Callable[[np.ndarray, Optional[np.ndarray], float], np.ndarray]
DOUBTS: dict[str, Doubt] = {
    "entropy": lambda outputs, *_: uncertainty(outputs),
    "labels": lambda outputs, *_: of_labels(outputs),
    "tokens": lambda outputs, *_: of_tokens(outputs),
    "change": _change,
}


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
