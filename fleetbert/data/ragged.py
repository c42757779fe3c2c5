"""Texts as engines take them: token ids one after the other, and how many there are of each."""

from __future__ import annotations

from typing import Iterable, Iterator, NamedTuple, Sequence

import numpy as np

from fleetbert.data.batching import SAFE_LENGTHS, round_up
from fleetbert.data.tokenizers import Encodings
from fleetbert.data.windows import Layout, divide


class Texts(NamedTuple):
    """Token ids without padding.

    ids: int [tokens], of all texts, one after the other; lengths: int [texts], tokens of each, at
    least 1; first_lengths: int [texts], how many of these belong to segment 0.
    """

    ids: np.ndarray
    lengths: np.ndarray
    first_lengths: np.ndarray

    def parts(self, plan: Iterable[np.ndarray]) -> Iterator[tuple[np.ndarray, Texts]]:
        """The texts of each entry of `plan`, int64 [texts of the part], with these numbers."""
        rows = self.split()
        for numbers in plan:
            ids = np.concatenate([rows[number] for number in numbers.tolist()])
            yield numbers, Texts(ids, self.lengths[numbers], self.first_lengths[numbers])

    def split(self) -> list[np.ndarray]:
        """Each text's ids, int [tokens]."""
        ends = np.cumsum(self.lengths).tolist()
        return [self.ids[begin:end] for begin, end in zip([0, *ends], ends)]


def of(encodings: Encodings) -> Texts:
    """All texts of `encodings`."""
    ids = np.concatenate(encodings.ids) if len(encodings.ids) else np.zeros(0, np.int32)
    return Texts(ids, encodings.lengths, encodings.first_lengths)


class Rows(NamedTuple):
    """Texts as rows that a model reads at once. layout: which are windows of which text; None where
    each text is a row."""

    texts: Texts
    layout: Layout | None

    def of(self, texts: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """The numbers of the rows of each of these texts, int64."""
        if self.layout is None:
            return list(np.asarray(texts, np.int64)[:, None])
        bounds = np.append(self.layout.starts, len(self.layout.text))
        return [np.arange(bounds[text], bounds[text + 1]) for text in texts]


def rows(encodings: Encodings) -> Rows:
    """The rows of all texts of `encodings`."""
    divided = divide(encodings)
    return Rows(of(encodings), None) if divided is None else Rows(of(divided[0]), divided[1])


def uniform(count: int, length: int, token: int) -> Texts:
    """Texts of `length` times the same token."""
    lengths = np.full(count, length)
    return Texts(np.full(count * length, token), lengths, lengths)


def offsets(lengths: np.ndarray) -> np.ndarray:
    """int64 [tokens]: which of its text's tokens each is, from 0."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)


def token_types(texts: Texts) -> np.ndarray:
    """int64 [tokens]: the segment of each token, 0 or 1."""
    of_second = offsets(texts.lengths) >= np.repeat(texts.first_lengths, texts.lengths)
    return of_second.astype(np.int64)


def pad(texts: Texts, pad_id: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """input_ids, token_type_ids and attention_mask (1 at tokens, 0 at padding), int64
    [texts, length]: each text a row, whose length is one of SAFE_LENGTHS."""
    length = round_up(int(texts.lengths.max()), SAFE_LENGTHS)
    columns = np.arange(length)
    real = columns < texts.lengths[:, None]
    input_ids = np.full(real.shape, pad_id, np.int64)
    input_ids[real] = texts.ids
    types = real & (columns >= texts.first_lengths[:, None])
    return input_ids, types.astype(np.int64), real.astype(np.int64)


def unpad(input_ids: np.ndarray, token_type_ids: np.ndarray, attention_mask: np.ndarray) -> Texts:
    """The texts that `pad` made these arrays of."""
    real = attention_mask > 0
    return Texts(input_ids[real], real.sum(1), ((token_type_ids == 0) & real).sum(1))


def mask_of(input_ids: np.ndarray, pad_id: int) -> np.ndarray:
    """attention_mask, int64 [texts, length], of rows whose ends are padding; each has one token at
    least. Only for ids that come without lengths: `pad_id` at a text's own end is lost."""
    columns = np.arange(1, input_ids.shape[1] + 1)
    lengths = np.maximum((columns * (input_ids != pad_id)).max(1), 1)
    return (columns <= lengths[:, None]).astype(np.int64)
