"""The tokens of a batch in packed rows, which hold several texts each, one after the other.

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


class PackedLayout(NamedTuple):
    """Where the tokens of a batch [texts, length] are in packed rows [rows, row_length].

    real: bool [texts, length], which tokens of the batch are in the rows; the first of each text
    is, for it answers. counts: int64 [texts], how many of each text. A text's tokens follow each
    other in one row; what is left of the row is padding.

    Flat indices, int64: pack_index [rows * row_length], into the batch, of each token of the rows
    (of padding: 0); unpack_index [texts, length], into the rows, of each token of the batch (of
    padding: the text's first); first [texts, 1], into the rows, of the texts' first tokens.
    single_row: the batch is one text without padding.

    What a program of packed rows computes from (`graph.packed`): mask float32 [rows, 1, row_length,
    row_length] is added to the scores, AWAY or 0. Its last layer has `most` queries for each row,
    one for each text: first_tokens int64 [texts, 1, 2] is the row and the place there of each
    text's first token; queries [rows, most, 2] has the numbers of the texts of each row; answers
    [texts, 1, 2] the row and the number there of each text's query; query_mask [rows, 1, most,
    row_length] is their mask.
    """

    real: np.ndarray
    counts: np.ndarray
    unpack_index: np.ndarray
    pack_index: np.ndarray
    first: np.ndarray
    mask: np.ndarray
    first_tokens: np.ndarray
    queries: np.ndarray
    answers: np.ndarray
    query_mask: np.ndarray
    single_row: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Rows, and their length."""
        return self.mask.shape[0], self.mask.shape[-1]


def packed_layout(real: np.ndarray) -> PackedLayout:
    """That of a batch whose tokens `real` (bool [texts, length]) are no padding."""
    if len(real) == 1 and real.all():
        return _single_row(real.shape[1])
    return _lay_out(real)


@functools.lru_cache(maxsize=512)  # as many tokens as BERT takes
def _single_row(length: int) -> PackedLayout:
    """Of one text without padding. Computing it takes as long as a small operator."""
    layout = _lay_out(np.ones((1, length), bool), length)._replace(single_row=True)
    for array in layout[:-1]:
        array.setflags(write=False)
    return layout


def _lay_out(given: np.ndarray, length: int | None = None) -> PackedLayout:
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
    begins, answers = np.empty((texts, 1), np.int64), np.empty((texts, 1, 2), np.int64)
    queries = np.zeros((len(rows), most, 2), np.int64)
    ends = counts.tolist()
    for row, members in enumerate(rows):
        begin = row * length
        queries[row, : len(members), 0] = members
        for place, number in enumerate(members):
            begins[number] = begin
            answers[number] = row, place
            begin += ends[number]
    offsets = real.cumsum(1)
    offsets -= 1
    unpack_index = np.where(real, begins + offsets, begins)
    taken = unpack_index[real]
    pack_index = np.zeros(len(rows) * length, np.int64)
    pack_index[taken] = np.flatnonzero(real)
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
    first_tokens = np.stack(np.divmod(begins, length), -1)
    at = first_tokens[queries[..., 0], 0, 1]
    query_mask = mask[np.arange(len(rows))[:, None], 0, at][:, None]
    return PackedLayout(
        *(real, counts, unpack_index, pack_index, begins),
        *(mask, first_tokens, queries, answers, query_mask),
    )


def pack(batch: np.ndarray, layout: PackedLayout) -> np.ndarray:
    """A batch [texts, length, ...] in packed rows, flat: [rows * row_length, ...]."""
    return batch.reshape(-1, *batch.shape[2:])[layout.pack_index]
