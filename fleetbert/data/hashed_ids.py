"""Ids of categories that have no vocabulary: hashes of their bytes."""

from __future__ import annotations

import numpy as np

# Ids are below it. Of 20 million, two are the same in one table of six thousand.
ALL_IDS = 1 << 60


def hashed(categories: np.ndarray) -> np.ndarray:
    """Ids (int64, from 0, below ALL_IDS) of categories [rows, columns], bytes of type "S".

    FNV-1a of 64 bits (Fowler, Noll, Vo) over the bytes, from a start of the column's own, and the
    last step of SplitMix64 (Steele et al. 2014), of which the upper 60 bits are taken.
    """
    rows, columns = categories.shape
    width = categories.dtype.itemsize
    texts = np.ascontiguousarray(categories).view(np.uint8).reshape(rows, columns, width)
    prime = np.uint64(0x100000001B3)
    hashes = np.full((rows, columns), 0xCBF29CE484222325, np.uint64)
    hashes = (hashes ^ np.arange(1, columns + 1, dtype=np.uint64)) * prime
    for place in range(width):
        byte = texts[:, :, place].astype(np.uint64)
        hashes = np.where(byte == 0, hashes, (hashes ^ byte) * prime)
    return (mixed(hashes) >> np.uint64(4)).astype(np.int64)


def mixed(numbers: np.ndarray) -> np.ndarray:
    """The last step of SplitMix64: each bit of a uint64 changes about half of the result's."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def places_of(ids: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where `ids` are in `known`, which are ascending and at least one, and whether they are."""
    places = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    return places, known[places] == ids
