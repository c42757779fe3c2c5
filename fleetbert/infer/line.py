"""The tokens of a batch in one line, text after text, without the padding of rows."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np


class Places(NamedTuple):
    """Where the tokens of a batch are.

    real: bool [texts, length], which places of the batch have a token in the line; the first of
    each text has one, for it answers. counts: int64 [texts], how many. In the line, int64: spread
    [texts, length], of each place of the batch (of padding: where the text begins); first [texts,
    1], of the texts' first. In the batch, as row * length + offset: collect int64 [tokens], of each
    token of the line. alone: it is one text without padding.
    """

    real: np.ndarray
    counts: np.ndarray
    spread: np.ndarray
    collect: np.ndarray
    first: np.ndarray
    alone: bool = False


def places(real: np.ndarray) -> Places:
    """Of a batch whose tokens `real` (bool [texts, length]) are no padding. The line ends with
    copies of its first token, so that there are few numbers of tokens: each that is new takes 2 to
    5 ms, and a megabyte for good."""
    if len(real) == 1 and real.all():
        return _of_one(real.shape[1])
    return _find(real)


@functools.lru_cache(maxsize=512)  # as many tokens as BERT takes
def _of_one(length: int) -> Places:
    """Of one text without padding, for which finding them takes as long as a small operator."""
    found = _find(np.ones((1, length), bool))._replace(alone=True)
    for array in found[:-1]:
        array.setflags(write=False)
    return found


def _find(real: np.ndarray) -> Places:
    real = real.copy()
    real[:, 0] = True
    found = np.flatnonzero(real)
    spread = np.zeros(real.shape, np.int64)
    spread[real] = np.arange(len(found))
    first = spread[:, :1].copy()
    collect = np.zeros(_round_up(len(found), len(real)), np.int64)
    collect[: len(found)] = found
    return Places(real, real.sum(1), np.where(real, spread, first), collect, first)


def in_line(rows: np.ndarray, at: Places) -> np.ndarray:
    """What a batch [texts, length, ...] has at the tokens of the line: [tokens, ...]."""
    return rows.reshape(-1, *rows.shape[2:])[at.collect]


def _round_up(count: int, texts: int) -> int:
    """The next number with seven binary digits and zeros; of several texts, also a multiple of 8,
    from 65 on of 16, and from 513 on of 64. AMX takes a tile of 16 tokens as long as one, and for
    each of 1,952 tokens 10 to 17 % longer than of 1,920 or 1,984 (oneDNN 3.3, Xeon of 2023)."""
    step = 1 << max(0, count.bit_length() - 7)
    if texts > 1:
        step = max(step, 64 if count > 512 else 16 if count > 64 else 8)
    return -(-count // step) * step
