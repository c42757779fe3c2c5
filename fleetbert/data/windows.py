"""Windows of long texts: overlapping pieces that a model reads one by one.

A text that has more tokens than a model reads at once becomes several rows (`divide`), each a
window of its tokens between those that every row repeats: special tokens, and the other text of a
pair.
`tasks.Answers.pool` makes the rows' outputs the text's.
"""

from __future__ import annotations

from typing import NamedTuple, Sequence

import numpy as np

from fleetbert.core.reading import Reading
from fleetbert.data.tokenizers import Encodings, Tokenizer


def windows(length: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Where each window of `length` tokens begins and ends.

    room: tokens of a window, at the most. stride: tokens that a window shares with the next one, at
    least; below `room`. There are as few windows as that allows, evenly spread, of one length, as
    short as that allows.
    """
    if not 0 <= stride < room:
        raise ValueError(f"a stride of {stride} is not from 0 to {room - 1}, with room for {room}")
    count, width = (int(values) for values in _plan(np.array(length), np.array(room), stride))
    begins = [number * (length - width) // max(count - 1, 1) for number in range(count)]
    return [(begin, begin + width) for begin in begins]


def _plan(
    lengths: np.ndarray, room: np.ndarray, stride: int | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """How many windows texts of so many tokens have, and how many tokens each window."""
    steps = -(-np.maximum(lengths - room, 0) // (room - stride))
    return steps + 1, -(-(lengths + steps * stride) // (steps + 1))


class Layout(NamedTuple):
    """Which rows are windows of which texts.

    text: int64 [rows], the text of each row, ascending. begins, ends: int64 [rows], its window
    among the tokens of the text. divided: int64 [texts, 2], `Encodings.divided`; lengths: int64
    [texts], tokens of each text. pool: `Reading.pool`.
    """

    text: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    divided: np.ndarray
    lengths: np.ndarray
    pool: str

    @property
    def starts(self) -> np.ndarray:
        """int64 [texts], the first row of each."""
        return np.searchsorted(self.text, np.arange(len(self.lengths)))

    @property
    def shares(self) -> np.ndarray:
        """float32 [rows], of each window in the mean over those of its text; for `vectors` by its
        tokens."""
        size = self.ends - self.begins if self.pool == "vectors" else np.ones(len(self.text))
        return (size / np.bincount(self.text, size)[self.text]).astype(np.float32)

    def tokens(self, row_starts: np.ndarray) -> list[np.ndarray]:
        """Of each text int64 [tokens]: where each of its tokens stands in the rows, in the window
        in which it has the most context; -1 for one that is in no row. row_starts: int64 [rows],
        where the rows begin."""
        places = []
        bounds = [*self.starts.tolist(), len(self.text)]
        for (first, last), length, *rows in zip(self.divided, self.lengths, bounds, bounds[1:]):
            begins, ends, starts = (
                values[slice(*rows)] for values in (self.begins, self.ends, row_starts)
            )
            token = np.arange(length)
            row = np.searchsorted((ends[:-1] + begins[1:]) / 2, token, "right")
            place = starts[row] + first + token - begins[row]
            place[(token < begins[row]) | (token >= ends[row])] = -1
            place[:first] = starts[0] + token[:first]
            place[last:] = starts[-1] + first + ends[-1] - begins[-1] + token[: length - last]
            places.append(place)
        return places


class Draw(NamedTuple):
    """Of a text with more windows than `most`, so many by chance."""

    most: int
    seed: Sequence[int]


def divide(
    encodings: Encodings,
    texts: np.ndarray | None = None,
    draw: Draw | None = None,
    always: bool = False,
) -> tuple[Encodings, Layout] | None:
    """The windows of texts as rows; None where each text is one row, unless `always`. texts:
    numbers of the texts to take; None: all. Beside a long repeated text of a pair, windows share
    half of what is left."""
    reading = encodings.reading
    if encodings.divided is None or reading is None:
        return None
    numbers = np.arange(len(encodings.ids)) if texts is None else texts
    wholes = [encodings.ids[number] for number in numbers.tolist()]
    lengths = np.array([len(whole) for whole in wholes], np.int64)
    if lengths.max(initial=0) <= reading.max_length and not always:
        return None
    divided = encodings.divided[numbers].astype(np.int64)
    ids, first_lengths, rows = [], [], []
    for place, (number, text) in enumerate(zip(numbers.tolist(), wholes)):
        length, first_length = len(text), int(encodings.first_lengths[number])
        first, last = divided[place].tolist()
        room = reading.max_length - length + last - first
        plan = windows(last - first, room, min(reading.stride, room // 2))
        if draw is not None and len(plan) > draw.most:
            random = np.random.default_rng([*draw.seed, number])
            plan = [plan[n] for n in sorted(random.permutation(len(plan))[: draw.most])]
        for begin, end in plan:
            begin, end = first + begin, first + end
            ids.append(np.concatenate([text[:first], text[begin:end], text[last:]]))
            left_out = length - len(ids[-1])
            first_lengths.append(first_length - (left_out if last <= first_length else 0))
            rows.append((place, begin, end))
    of_rows = Encodings(ids, np.array(first_lengths, np.int32), encodings.truncated)
    text, begins, ends = np.array(rows, np.int64).T
    return of_rows, Layout(text, begins, ends, divided, lengths, reading.pool)


def row_sizes(encodings: Encodings) -> tuple[np.ndarray, np.ndarray]:
    """How many rows each text has, and how many tokens each of them: two of int64 [texts]."""
    lengths, reading = np.asarray(encodings.lengths, np.int64), encodings.reading
    if encodings.divided is None or reading is None:
        return np.ones_like(lengths), lengths
    long = np.asarray(encodings.divided[:, 1] - encodings.divided[:, 0], np.int64)
    room = reading.max_length - (lengths - long)
    count, width = _plan(long, room, np.minimum(reading.stride, room // 2))
    return count, lengths - long + width


def row_tokens(encodings: Encodings, most: int | None = None) -> np.ndarray:
    """int64 [texts]: the tokens of all rows of each text, of `most` rows at the most."""
    counts, tokens = row_sizes(encodings)
    return (counts if most is None else np.minimum(counts, most)) * tokens


def encode(
    tokenizer: Tokenizer, texts_a: list[str], texts_b: list[str] | None, reading: Reading
) -> Encodings:
    """The tokens of texts, or pairs, as a model reads them."""
    if reading.long_texts == "cut":
        return tokenizer.encode(texts_a, texts_b, reading.max_length)
    return fit(tokenizer.encode_whole(texts_a, texts_b, reading.max_length), reading)


def fit(whole: Encodings, reading: Reading) -> Encodings:
    """Whole texts (with `Encodings.divided`) as a model reads them: with `windows` as they are,
    with `head_tail` without the middle of those that are too long."""
    if reading.long_texts == "windows":
        return whole._replace(reading=reading)
    assert whole.divided is not None
    lengths = np.asarray(whole.lengths)
    ids, words = list(whole.ids), None if whole.words is None else list(whole.words)
    first_lengths = whole.first_lengths.copy()
    long = np.flatnonzero(lengths > reading.max_length)
    for number in long.tolist():
        first, last = whole.divided[number].tolist()
        left_out = int(lengths[number]) - reading.max_length
        room = last - first - left_out
        head, tail = first + room - room // 2, last - room // 2
        ids[number] = np.concatenate([ids[number][:head], ids[number][tail:]])
        if last <= first_lengths[number]:
            first_lengths[number] -= left_out
        if words is not None:
            kept = words[number][(words[number][:, 0] < head) | (words[number][:, 0] >= tail)]
            words[number] = kept - (kept[:, :1] >= tail) * np.array([left_out, 0, 0], np.int32)
    return Encodings(ids, first_lengths, whole.truncated + len(long), words=words)
