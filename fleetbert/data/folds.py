"""A table divided into folds for cross-validation: each record is held out once."""

from __future__ import annotations

from pathlib import Path
from typing import Iterable, NamedTuple, Sequence

import numpy as np

from fleetbert.core import charset, files
from fleetbert.core.errors import UserError
from fleetbert.data import read
from fleetbert.data.records import Format


class Records(NamedTuple):
    """A table and its records as they stand in it, by the lines where they begin; of a file of
    SQuAD's layout by their numbers, as lines of JSONL.

    head: the header, empty where there is none. groups: of the group column; empty without one.
    """

    examples: list[read.Example]
    head: bytes
    records: dict[int, bytes]
    groups: dict[int, str]


def read_records(
    path: str | Path, form: Format, on_bad_line: str = "stop", group_column: str | None = None
) -> Records:
    """UserError as in `read.read_as`, or where a record has no group."""
    examples = read.read_as(path, form, on_bad_line).examples
    with read.opened(path) as file:
        records = form.records(enumerate(file, 1))
        if form.is_whole:  # several may stand in one line: here each has its own number
            records = iter(numbered := list(enumerate((record for _, record in records), 1)))
            form = form._replace(kind="jsonl")
            examples = read.parse_lines(path, numbered, form, on_bad_line).examples
        table = Records(examples, b"", {}, {})
        wanted = {example.line for example in examples}
        for number, record in records:
            if number == 1 and form.columns is not None:
                table = table._replace(head=_ended(record))
            elif number in wanted:
                record = charset.without_mark(record) if number == 1 else record
                table.records[number] = _ended(record, apart=form.kind == "conll")
                if group_column is not None:
                    table.groups[number] = _group(path, number, record, form, group_column)
    return table


def _ended(record: bytes, apart: bool = False) -> bytes:
    """A record with its line end; apart: a blank line has to follow it."""
    record = record if record.endswith(b"\n") else record + b"\n"
    return record if not apart or record.endswith(b"\n\n") else record + b"\n"


def _group(path: str | Path, number: int, record: bytes, form: Format, column: str) -> str:
    value = None if form.kind == "conll" else form.row(record).get(column)
    if value is None or value == "":
        raise UserError(
            f"data.group_column: {path}:{number} has no {column!r}; name a column in which each "
            "row has a value"
        )
    return str(value)


def stratified(labels: Sequence[str], folds: int, seed: int) -> np.ndarray:
    """A fold for each record, int64 [records]: random, and of each label as many in each fold, but
    for one."""
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(np.asarray(labels)[order], kind="stable")]
    chosen = np.empty(len(labels), np.int64)
    chosen[order] = np.arange(len(labels)) % folds
    return chosen


def grouped(groups: Sequence[str], folds: int, seed: int) -> np.ndarray:
    """A fold for each record, int64 [records]; those of a group have the same. Larger groups go
    first, each to the smallest fold, so that folds are of similar size."""
    names, numbers, sizes = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(names))
    order = order[np.argsort(-sizes[order], kind="stable")]
    filled, chosen = np.zeros(folds, np.int64), np.empty(len(names), np.int64)
    for group in order:
        chosen[group] = filled.argmin()
        filled[chosen[group]] += sizes[group]
    return chosen[numbers.reshape(-1)]


def content(table: Records, lines: Iterable[int]) -> bytes:
    """Some records as a table of their own."""
    return table.head + b"".join(table.records[line] for line in lines)


def write(path: Path, table: Records, lines: Iterable[int]) -> None:
    """Write some records as a table of their own. A file that has them stays as it is, so that a
    run that was trained on it counts as finished."""
    whole = content(table, lines)
    if not holds(path, whole):
        with files.writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with files.replacing(path) as stream:
                stream.write(whole)


def holds(path: Path, whole: bytes) -> bool:
    """Whether a file has just this content."""
    return path.is_file() and path.read_bytes() == whole
