"""Click logs to train on: rows of `data.fields`, each with a label, 0 or 1."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Sequence

import numpy as np

from fleetbert.core import charset
from fleetbert.core.errors import UserError
from fleetbert.data import fields
from fleetbert.data.read import check_not_empty, opened

LINES_AT_ONCE = 8192


@dataclass
class Clicks:
    """The rows of a file."""

    name: str
    labels: np.ndarray  # float32 [rows], 0 or 1
    numbers: np.ndarray  # float32 [rows, fields.NUMBERS], NaN where missing
    ids: np.ndarray  # int64 [rows, fields.CATEGORIES]
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
            rows = [(n, fields.split(line.rstrip(b"\r\n"))) for n, line in block if line.strip()]
            try:
                arrays = _parse([row for _, row in rows])
            except ValueError:
                wrong = {n: reason for n, row in rows if (reason := fields.problem(row))}
                if on_bad_line == "stop":
                    number, reason = next(iter(wrong.items()))
                    raise UserError(f"{path}:{number}: {reason}") from None
                bad = bad or list(wrong.items())[:1]
                skipped += len(wrong)
                rows = [(n, row) for n, row in rows if n not in wrong]
                arrays = _parse([row for _, row in rows])
            parts.append((*arrays, np.array([n for n, _ in rows], np.int64)))
    check_not_empty(path, sum(len(part[0]) for part in parts), skipped, bad)
    labels, numbers, ids, lines = (np.concatenate(column) for column in zip(*parts))
    return Clicks(str(path), labels, numbers, ids, lines, skipped)


def _parse(rows: Sequence[list[bytes]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, numbers and ids of rows, or ValueError where one of them is bad."""
    numbers, ids = fields.parse(rows)
    labels = np.array([row[0] for row in rows], "S2")
    if not np.isin(labels, (b"0", b"1")).all():
        raise ValueError
    return (labels == b"1").astype(np.float32), numbers, ids
