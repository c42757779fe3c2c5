"""The tokens of texts in packed rows, which hold several texts each, one after the other.

Padding costs as much as text. So texts of a batch share rows (`pack_rows`), and a text
attends to its own tokens only, which a mask says for each pair of tokens. Of 32 of SST-2's texts in
a row each half is padding; in such rows a thirtieth.

Method: Krell et al. 2021, "Efficient sequence packing without cross-contamination", section 3.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from typing import NamedTuple, Sequence

import numpy as np

from fleetbert.compat.lengths import SAFE_LENGTHS
from fleetbert.data.batching import ATTENTION_LENGTH, best_fit, round_up
from fleetbert.data.ragged import offsets

# Of rows that several texts share. Each number of rows and length that is new takes some 3 ms to
# prepare, and each number of tokens in all as much, so there are few.
SHARED_LENGTHS = tuple(length for length in SAFE_LENGTHS if length % 32 == 0)
# Added to the scores of tokens that are not looked at: these count for 0 then, exactly.
AWAY = np.float32(-1e4)


class PackedLayout(NamedTuple):
    """Where the tokens of texts are in packed rows [rows, row_length].

    A text's tokens follow each other in one row; what is left of the row is padding. lengths: int
    [texts], tokens of each text.

    Flat indices into the rows, int64: places [tokens], of each token, text by text; first [texts],
    of the texts' first tokens. positions: int64 [rows * row_length], which of its text's tokens is
    there, from 0.

    What a program of packed rows computes from (`graph.packed`): mask float32 [rows, 1, row_length,
    row_length] is added to the scores, AWAY or 0. Its last layer has `most` queries for each row,
    one for each text: first_tokens int64 [texts, 1, 2] is the row and the place there of each
    text's first token; queries [rows, most, 2] has the numbers of the texts of each row; answers
    [texts, 1, 2] the row and the number there of each text's query; query_mask [rows, 1, most,
    row_length] is their mask.
    """

    lengths: np.ndarray
    places: np.ndarray
    first: np.ndarray
    positions: np.ndarray
    mask: np.ndarray
    first_tokens: np.ndarray
    queries: np.ndarray
    answers: np.ndarray
    query_mask: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        """Rows, and their length."""
        return self.mask.shape[0], self.mask.shape[-1]


def packed_layout(lengths: np.ndarray) -> PackedLayout:
    """That of texts of so many tokens (int [texts])."""
    if len(lengths) == 1:
        return _of_one(int(lengths[0]))
    return _lay_out(lengths, *pack_rows(lengths.tolist()))


@functools.lru_cache(maxsize=512)  # as many tokens as BERT takes
def _of_one(length: int) -> PackedLayout:
    """Of one text. Computing it takes as long as a small operator."""
    layout = _lay_out(np.array([length]), *pack_rows([length]))
    for array in layout:
        array.setflags(write=False)
    return layout


def _lay_out(lengths: np.ndarray, length: int, rows: list[list[int]]) -> PackedLayout:
    """That of rows of `length`, each the numbers of its texts."""
    texts = len(lengths)
    # A power of two: each number that is new makes attention prepare anew.
    most = 1 << (max(map(len, rows)) - 1).bit_length()
    first, answers = np.empty(texts, np.int64), np.empty((texts, 1, 2), np.int64)
    queries = np.zeros((len(rows), most, 2), np.int64)
    counts = lengths.tolist()
    for row, members in enumerate(rows):
        begin = row * length
        queries[row, : len(members), 0] = members
        for place, number in enumerate(members):
            first[number] = begin
            answers[number] = row, place
            begin += counts[number]
    offset = offsets(lengths)
    places = np.repeat(first, lengths) + offset
    positions = np.zeros(len(rows) * length, np.int64)
    positions[places] = offset
    owner = np.full(len(rows) * length, -1)
    owner[places] = np.repeat(np.arange(texts), lengths)
    owner = owner.reshape(len(rows), length)
    mask = AWAY * (owner[:, None, :, None] != owner[:, None, None])
    first_tokens = np.stack(np.divmod(first[:, None], length), -1)
    at = first_tokens[queries[..., 0], 0, 1]
    query_mask = mask[np.arange(len(rows))[:, None], 0, at][:, None]
    return PackedLayout(
        *(lengths, places, first, positions),
        *(mask, first_tokens, queries, answers, query_mask),
    )


def pack(tokens: np.ndarray, layout: PackedLayout) -> np.ndarray:
    """What each token has, [tokens, ...], in packed rows, flat: [rows * row_length, ...]; 0 at
    padding."""
    rows = np.zeros((len(layout.positions), *tokens.shape[1:]), tokens.dtype)
    rows[layout.places] = tokens
    return rows


def padded_index(layout: PackedLayout) -> tuple[np.ndarray, np.ndarray]:
    """Of each text a row as long as the longest text: the places of its tokens in the packed rows,
    int64 [texts, longest] (of padding: the first token's), and which are no padding, bool."""
    columns = np.arange(int(layout.lengths.max()))
    real = columns < layout.lengths[:, None]
    return layout.first[:, None] + columns * real, real


def pack_rows(lengths: Sequence[int]) -> tuple[int, list[list[int]]]:
    """A length of SAFE_LENGTHS, and rows of at most so many tokens, each the numbers of its texts:
    those that an engine answers in the least time.

    Longer rows are fuller, but attention computes all pairs of a row's tokens. The length is one of
    SHARED_LENGTHS, unless no two texts go into the shortest row that holds the longest.
    """
    count, total, shortest = len(lengths), sum(lengths), min(lengths)
    best, packed = math.inf, (0, [[0]])
    padded = round_up(max(lengths), SAFE_LENGTHS)
    shared = SHARED_LENGTHS[bisect_left(SHARED_LENGTHS, padded) :]
    for length in shared if 2 * shortest <= padded else (padded, *shared):
        each = 1 + length / ATTENTION_LENGTH
        if total * each >= best:  # even if all rows were full
            break
        if -(-count // (length // shortest)) * length * each >= best:  # or of the shortest texts
            continue
        rows = best_fit(lengths, length) if 2 * shortest <= length else [[n] for n in range(count)]
        if len(rows) * length * each < best:
            best, packed = len(rows) * length * each, (length, rows)
    return packed
