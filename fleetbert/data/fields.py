"""Rows of fixed fields, in the format of Criteo: a label, 13 numbers and 26 categories, with tabs
between and without a header. A missing one is empty. Lines as PaddleRec's samples have them are
rows too: `click:0 dense_feature:0.05 ... 1:737395 2:210498 ...`.

Categories have no vocabulary: the id of one is a hash of its column and its bytes. Missing is a
category like any other. Engines and the server take a row as WORDS integers (`pack`), as they take
a text as its token ids.
"""

from __future__ import annotations

import math
from typing import Sequence

import numpy as np

from fleetbert.data.hashed_ids import hashed

NUMBERS, CATEGORIES = 13, 26
COLUMNS = 1 + NUMBERS + CATEGORIES
WORDS = NUMBERS + 2 * CATEGORIES  # int32, of a row
LONGEST = 64  # bytes of a category
LARGEST = float(np.finfo(np.float32).max)
SLOTS = {b"%d" % (place + 1): place for place in range(CATEGORIES)}  # PaddleRec's names of them


def split(line: bytes, labelled: bool = True) -> list[bytes]:
    """The columns of a line, the label first: b"" where it has none and need not have one. What is
    not known of PaddleRec's is a column too many."""
    if not line.startswith((b"click:", b"dense_feature:")):
        fields = line.split(b"\t")
        return fields if labelled or len(fields) != COLUMNS - 1 else [b"", *fields]
    label = b""
    numbers: list[bytes] = []
    others: list[bytes] = []
    categories = [b""] * CATEGORIES
    for word in line.split():
        name, _, value = word.partition(b":")
        if name == b"click" and not label:
            label = value
        elif name == b"dense_feature":
            numbers.append(value)
        elif name in SLOTS and not categories[SLOTS[name]]:
            categories[SLOTS[name]] = value
        else:
            others.append(word)
    if len(numbers) != NUMBERS:
        others = []  # they would make up for numbers that are missing
    return [label, *numbers, *categories, *others]


def problem(fields: Sequence[bytes], labelled: bool = True) -> str:
    """What is wrong with a row of `split`, or nothing."""
    if len(fields) != COLUMNS:
        return (
            f"has {len(fields)} columns, not {COLUMNS}: a label, {NUMBERS} numbers and "
            f"{CATEGORIES} categories with a tab between each two"
            + ("" if labelled else "; the label may be left out")
        )
    if fields[0] not in (b"0", b"1") and (labelled or fields[0]):
        return f"the label is {_shown(fields[0])}, not 0 or 1"
    for place, word in enumerate(fields[1 : 1 + NUMBERS], 2):
        if word and not _is_number(word):
            return f"column {place} is {_shown(word)}, not a number"
    for place, word in enumerate(fields[1 + NUMBERS :], 2 + NUMBERS):
        if len(word) > LONGEST:
            return f"column {place} has {len(word)} bytes; a category may have {LONGEST}"
        if b"\0" in word:
            return f"column {place} holds a NUL character"
    return ""


def _is_number(word: bytes) -> bool:
    try:
        value = float(word)
    except ValueError:
        return False
    return math.isfinite(value) and abs(value) <= LARGEST


def _shown(word: bytes) -> str:
    return repr(word[:40].decode("utf-8", "replace"))


def parse(rows: Sequence[Sequence[bytes]]) -> tuple[np.ndarray, np.ndarray]:
    """Numbers (float32 [rows, NUMBERS], NaN where missing) and ids (int64 [rows, CATEGORIES]) of
    rows of `split`; ValueError where one of them is bad."""
    if any(len(fields) != COLUMNS for fields in rows):
        raise ValueError
    words = [field for fields in rows for field in fields[1 : 1 + NUMBERS]]
    numbers = np.array([word or b"nan" for word in words], "S").astype(np.float32)
    known = np.isfinite(numbers) | np.array([not word for word in words], bool)
    categories = [field for fields in rows for field in fields[1 + NUMBERS :]]
    if any(len(field) > LONGEST or b"\0" in field for field in categories) or not known.all():
        raise ValueError
    texts = np.array(categories, "S").reshape(-1, CATEGORIES)
    return numbers.reshape(-1, NUMBERS), hashed(texts)


def features(numbers: np.ndarray) -> np.ndarray:
    """What the network takes of the numbers: float32 [rows, 2 * NUMBERS], the logarithm of the
    size with the sign, 0 where missing; then which are missing."""
    missing = np.isnan(numbers)
    known = np.where(missing, np.float32(0), numbers)
    logs = np.sign(known) * np.log1p(np.abs(known))
    return np.concatenate([logs, missing.astype(np.float32)], axis=1)


def pack(numbers: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """int32 [rows, WORDS] of the numbers and ids of `parse`: their bits."""
    parts = np.ascontiguousarray(numbers, np.float32), np.ascontiguousarray(ids, np.int64)
    return np.concatenate([part.view(np.int32) for part in parts], axis=1)


def unpack(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What `pack` was given."""
    parts = (words[:, :NUMBERS], words[:, NUMBERS:])
    numbers, ids = (np.ascontiguousarray(part, np.int32) for part in parts)
    return numbers.view(np.float32), ids.view(np.int64)
