"""Texts of a file whose labels, if it has any, do not matter."""

from __future__ import annotations

from pathlib import Path

from fleetbert import config
from fleetbert.core.errors import UserError
from fleetbert.data import read
from fleetbert.data.records import Example
from fleetbert.tasks import Task


def read_unlabelled(
    path: str, task: Task, key: str, columns: config.Columns = read.USUAL
) -> list[Example]:
    """The texts of a table, or of a file with one a line; UserError names the job's `key`."""
    if task.shape.pair and not _is_table(path, task):
        raise UserError(f"{key}: {path}: pairs need a .tsv, .csv or .jsonl with text_b")
    return _read(path, task, columns)


def single_texts(path: str, task: Task, columns: config.Columns = read.USUAL) -> list[str]:
    """The same, both texts of a pair by themselves; a file with one a line serves any task."""
    examples = _read(path, task, columns)
    seconds = [example.text_b for example in examples if example.text_b is not None]
    return [*(example.text_a for example in examples), *seconds]


def _is_table(path: str, task: Task) -> bool:
    tagged = read.TAG_SUFFIXES if task.shape.label == "spans" else ()
    return Path(path).suffix.lower() in (*read.COLUMN_SUFFIXES, *read.JSON_SUFFIXES, *tagged)


def _read(path: str, task: Task, columns: config.Columns) -> list[Example]:
    form = (
        task.labels.table_format(path, columns, labelled=False)
        if _is_table(path, task)
        else read.texts_format(path, columns)
    )
    return read.read_as(path, form, columns.on_bad_line).examples
