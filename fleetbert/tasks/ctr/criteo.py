"""Click logs in the format of Criteo: one line a row, 40 columns between tabs, no header.

`label` (0 or 1), 13 numbers, 26 categories; a missing one is empty. Categories have no vocabulary:
the id of one is a hash of its column and its bytes. Missing is a category like any other. Lines as
PaddleRec's samples have them are read too: `click:0 dense_feature:0.05 ... 1:737395 2:210498 ...`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Sequence

import numpy as np

from fleetbert.core import charset
from fleetbert.core.errors import UserError
from fleetbert.data.hashed_ids import hashed
from fleetbert.data.read import check_not_empty, opened

NUMBERS, CATEGORIES = 13, 26
COLUMNS = 1 + NUMBERS + CATEGORIES
LONGEST = 64  # bytes of a category
SLOTS = {b"%d" % (place + 1): place for place in range(CATEGORIES)}  # PaddleRec's names of them
LINES_AT_ONCE = 8192


@dataclass
class Clicks:
    """The rows of a file."""

    name: str
    labels: np.ndarray  # float32 [rows], 0 or 1
    numbers: np.ndarray  # float32 [rows, NUMBERS], NaN where missing
    ids: np.ndarray  # int64 [rows, CATEGORIES]
    lines: np.ndarray  # int64 [rows], where each row stands in its file, from 1
    skipped: int  # bad lines left out

    def counts(self) -> dict[str, int]:
        return {"texts": len(self.labels), "truncated": 0, "skipped_lines": self.skipped}

    def fingerprint(self) -> str:
        """Of labels, numbers and ids."""
        digest = hashlib.sha256()
        for array in (self.labels, self.numbers, self.ids):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def read(path: str | Path, on_bad_line: str = "stop") -> Clicks:
    """Read all rows of a file.

    A line that cannot be used raises UserError with `path:line: reason`; with
    `on_bad_line="skip"` it is left out and counted. UserError too where nothing is left.
    """
    parts: list[tuple[np.ndarray, ...]] = []
    bad: list[tuple[int, str]] = []
    skipped = 0
    with opened(path) as file:
        numbered = enumerate(file, 1)
        while block := list(islice(numbered, LINES_AT_ONCE)):
            if block[0][0] == 1:
                block[0] = 1, charset.without_mark(block[0][1])
            rows = [(n, _fields(line.rstrip(b"\r\n"))) for n, line in block if line.strip()]
            try:
                arrays = _parse([fields for _, fields in rows])
            except ValueError:
                wrong = {n: reason for n, fields in rows if (reason := _problem(fields))}
                if on_bad_line == "stop":
                    number, reason = next(iter(wrong.items()))
                    raise UserError(f"{path}:{number}: {reason}") from None
                bad = bad or list(wrong.items())[:1]
                skipped += len(wrong)
                rows = [(n, fields) for n, fields in rows if n not in wrong]
                arrays = _parse([fields for _, fields in rows])
            parts.append((*arrays, np.array([n for n, _ in rows], np.int64)))
    check_not_empty(path, sum(len(part[0]) for part in parts), skipped, bad)
    labels, numbers, ids, lines = (np.concatenate(column) for column in zip(*parts))
    return Clicks(str(path), labels, numbers, ids, lines, skipped)


def _fields(line: bytes) -> list[bytes]:
    """The columns of a line. What it does not know of PaddleRec's is a column too many."""
    if not line.startswith(b"click:"):
        return line.split(b"\t")
    label, *words = line.split()
    numbers: list[bytes] = []
    others: list[bytes] = []
    categories = [b""] * CATEGORIES
    for word in words:
        name, _, value = word.partition(b":")
        if name == b"dense_feature":
            numbers.append(value)
        elif name in SLOTS and not categories[SLOTS[name]]:
            categories[SLOTS[name]] = value
        else:
            others.append(word)
    if len(numbers) != NUMBERS:
        others = []  # they would make up for numbers that are missing
    return [label[len(b"click:") :], *numbers, *categories, *others]


def _parse(rows: Sequence[list[bytes]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, numbers and ids of rows, or ValueError where one of them is bad."""
    if any(len(fields) != COLUMNS for fields in rows):
        raise ValueError
    labels = np.array([fields[0] for fields in rows], "S2")
    words = [field for fields in rows for field in fields[1 : 1 + NUMBERS]]
    numbers = np.array([word or b"nan" for word in words], "S").astype(np.float32)
    known = np.isfinite(numbers) | np.array([not word for word in words], bool)
    categories = [field for fields in rows for field in fields[1 + NUMBERS :]]
    if any(len(field) > LONGEST or b"\0" in field for field in categories):
        raise ValueError
    if not np.isin(labels, (b"0", b"1")).all() or not known.all():
        raise ValueError
    texts = np.array(categories, "S").reshape(-1, CATEGORIES)
    return (labels == b"1").astype(np.float32), numbers.reshape(-1, NUMBERS), hashed(texts)


def _problem(fields: list[bytes]) -> str:
    """What is wrong with a row, or nothing."""
    if len(fields) != COLUMNS:
        return (
            f"has {len(fields)} columns, not {COLUMNS}: a label, {NUMBERS} numbers and "
            f"{CATEGORIES} categories with a tab between each two"
        )
    if fields[0] not in (b"0", b"1"):
        return f"the label is {_shown(fields[0])}, not 0 or 1"
    for place, word in enumerate(fields[1 : 1 + NUMBERS], 1):
        try:
            known = not word or np.isfinite(np.array([word], "S").astype(np.float32)[0])
        except ValueError:
            known = False
        if not known:
            return f"column {place + 1} is {_shown(word)}, not a number"
    for place, word in enumerate(fields[1 + NUMBERS :], 2 + NUMBERS):
        if len(word) > LONGEST:
            return f"column {place} has {len(word)} bytes; a category may have {LONGEST}"
        if b"\0" in word:
            return f"column {place} holds a NUL character"
    return ""


def _shown(word: bytes) -> str:
    return repr(word[:40].decode("utf-8", "replace"))


def features(numbers: np.ndarray) -> np.ndarray:
    """What the network takes of the numbers: float32 [rows, 2 * NUMBERS], the logarithm of the
    size with the sign, 0 where missing; then which are missing."""
    missing = np.isnan(numbers)
    known = np.where(missing, np.float32(0), numbers)
    logs = np.sign(known) * np.log1p(np.abs(known))
    return np.concatenate([logs, missing.astype(np.float32)], axis=1)
