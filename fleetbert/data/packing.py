"""The tokens of a batch in one line: rows that hold several texts each, one after the other.

Padding costs as much as text. So texts of a batch share rows (`batching.pack_rows`), and a text
attends to its own tokens only, which a mask says for each pair of tokens. Of 32 of SST-2's texts in
a row each half is padding; in such rows a thirtieth.

Method: Krell et al. 2021, "Efficient sequence packing without cross-contamination", section 3.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from fleetbert.data.batching import pack_rows

# Added to the scores of tokens that are not looked at: these count for 0 then, exactly.
AWAY = np.float32(-1e4)


class Places(NamedTuple):
    """Where the tokens of a batch are.

    real: bool [texts, length], which places of the batch have a token in the line; the first of
    each text has one, for it answers. counts: int64 [texts], how many.

    The line has rows * row_length places. A text's tokens follow each other there; the others are
    padding. In the line, int64: spread [texts, length], of each place of the batch (of padding:
    where the text begins); first [texts, 1], of the texts' first. In the batch, as row * length +
    offset: collect int64 [rows * row_length], of each place of the line (of padding: 0). alone: it
    is one text without padding.

    What a program of rows computes from (`graph.packed`): mask float32 [rows, 1, row_length,
    row_length] is added to the scores, AWAY or 0. Its last layer asks for texts, `most` in a row:
    opening int64 [texts, 1, 2] is the row and the place there of each text's first token; asked
    [rows, most, 2] has the numbers of the texts of each row, and answered [texts, 1, 2] the row and
    the place there of each text, so asked; asked_mask [rows, 1, most, row_length] is of these.
    """

    real: np.ndarray
    counts: np.ndarray
    spread: np.ndarray
    collect: np.ndarray
    first: np.ndarray
    mask: np.ndarray
    opening: np.ndarray
    asked: np.ndarray
    answered: np.ndarray
    asked_mask: np.ndarray
    alone: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Rows, and their length."""
        return self.mask.shape[0], self.mask.shape[-1]


def places(real: np.ndarray) -> Places:
    """Of a batch whose tokens `real` (bool [texts, length]) are no padding."""
    if len(real) == 1 and real.all():
        return _of_one(real.shape[1])
    return _find(real)


@functools.lru_cache(maxsize=512)  # as many tokens as BERT takes
def _of_one(length: int) -> Places:
    """Of one text without padding, for which finding them takes as long as a small operator."""
    found = _find(np.ones((1, length), bool), length)._replace(alone=True)
    for array in found[:-1]:
        array.setflags(write=False)
    return found


def _find(given: np.ndarray, length: int | None = None) -> Places:
    """length: of the one row."""
    real = given.copy()
    real[:, 0] = True
    counts = real.sum(1)
    if length is None:
        length, rows = pack_rows(counts.tolist())
    else:
        rows = [[0]]
    texts = len(real)
    # A power of two: each number that is new makes attention prepare anew.
    most = 1 << (max(map(len, rows)) - 1).bit_length()
    begins, answered = np.empty((texts, 1), np.int64), np.empty((texts, 1, 2), np.int64)
    asked = np.zeros((len(rows), most, 2), np.int64)
    ends = counts.tolist()
    for row, members in enumerate(rows):
        begin = row * length
        asked[row, : len(members), 0] = members
        for place, number in enumerate(members):
            begins[number] = begin
            answered[number] = row, place
            begin += ends[number]
    offsets = real.cumsum(1)
    offsets -= 1
    spread = np.where(real, begins + offsets, begins)
    taken = spread[real]
    collect = np.zeros(len(rows) * length, np.int64)
    collect[taken] = np.flatnonzero(real)
    owner = np.full(len(rows) * length, -1)
    owner[taken] = np.repeat(np.arange(texts), counts)
    keys = owner
    silent = ~given[:, 0] & (counts > 1)  # the first token is padding, which none looks at
    if silent.any():
        keys = owner.copy()
        keys[begins[silent]] = -2
    shape = (len(rows), length)
    owner, keys = owner.reshape(shape), keys.reshape(shape)
    mask = AWAY * (owner[:, None, :, None] != keys[:, None, None])
    opening = np.stack(np.divmod(begins, length), -1)
    at = opening[asked[..., 0], 0, 1]
    asked_mask = mask[np.arange(len(rows))[:, None], 0, at][:, None]
    return Places(real, counts, spread, collect, begins, mask, opening, asked, answered, asked_mask)


def in_line(rows: np.ndarray, at: Places) -> np.ndarray:
    """What a batch [texts, length, ...] has at the places of the line: [places, ...]."""
    return rows.reshape(-1, *rows.shape[2:])[at.collect]
