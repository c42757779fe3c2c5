"""Tables that a program holds: written as JSONL, which the readers of files then check."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Iterable, Iterator, Literal, Mapping, Protocol, Sequence, Union

from fleetbert import files
from fleetbert.errors import UserError

Row = Union[str, Mapping[str, object], Sequence[object]]


class Frame(Protocol):
    """A pandas DataFrame, as far as it is needed."""

    def to_dict(self, orient: Literal["records"]) -> Iterable[Mapping[str, object]]: ...


# A path; rows; columns by name; a pandas DataFrame; a datasets.Dataset, which iterates over rows.
Table = Union[str, "os.PathLike[str]", Mapping[str, Sequence[object]], Iterable[Row], Frame]

FIELDS = ("text_a", "text_b", "text_c", "label")
TEXTS = ("text", "sentence")  # other names of text_a
SPANS = "spans"  # of label, where it is a list of them


def as_file(name: str, table: Table, folder: Path, labelled: bool = True) -> Path:
    """The path of a table: its own, or `folder`/`name`.jsonl with its rows.

    A row is a mapping with text_a (or text), text_b and label; a tuple (text_a, label) or (text_a,
    text_b, label), without `labelled` (text_a,) or (text_a, text_b); or a text. What labels may be,
    the task says. UserError names the row, from 0, that is none of these.
    """
    if isinstance(table, (str, os.PathLike)):
        return Path(table)
    lines = [
        json.dumps(_fields(f"{name}, row {number}", row, labelled)) + "\n"
        for number, row in enumerate(_rows(table))
    ]
    if not lines:
        raise UserError(f"{name}: has no rows")
    path = folder / f"{name}.jsonl"
    with files.writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        with files.replacing(path) as stream:
            stream.write("".join(lines).encode())
    return path


def has_pairs(path: str | Path) -> bool:
    """Whether a file that `as_file` has written holds pairs of texts."""
    with Path(path).open(encoding="utf-8") as lines:
        return "text_b" in json.loads(lines.readline())


def _rows(table: Mapping[str, Sequence[object]] | Iterable[Row] | Frame) -> Iterator[Row]:
    if isinstance(table, Mapping):
        return (dict(zip(table, values)) for values in zip(*table.values()))
    to_dict = getattr(table, "to_dict", None)
    if hasattr(table, "columns") and to_dict is not None:
        return iter(to_dict("records"))
    features = getattr(table, "features", None)  # of a datasets.Dataset
    if features is not None:
        return (_named(row, features) for row in _iterate(table))
    return iter(_iterate(table))


def _iterate(table: object) -> Iterable[Row]:
    if not isinstance(table, Iterable):
        raise UserError(
            f"a table is a path, a list of rows, a DataFrame or a Dataset, not a "
            f"{type(table).__name__}"
        )
    return table


def _named(row: Row, features: Mapping[str, object]) -> Row:
    """A Dataset's row with the label's name instead of its number, where the Dataset has names."""
    names = getattr(features.get("label"), "names", None)
    if not isinstance(row, Mapping) or names is None or not isinstance(row.get("label"), int):
        return row
    number = row["label"]
    assert isinstance(number, int)
    if number < 0:  # the Hub's mark of rows without a label
        return {name: value for name, value in row.items() if name != "label"}
    return {**row, "label": names[number]}


def _fields(where: str, row: Row, labelled: bool) -> dict[str, object]:
    if isinstance(row, str):
        row = {"text_a": row}
    if isinstance(row, Mapping):
        fields = {name: _plain(row[name]) for name in FIELDS if name in row}
        if SPANS in row:
            fields.setdefault("label", _plain(row[SPANS]))
        for name in TEXTS:
            if name in row:
                fields.setdefault("text_a", _plain(row[name]))
        if "text_a" not in fields:
            raise UserError(
                f"{where}: has {', '.join(map(str, row))}; name its columns text_a (or text), label"
                " and, for pairs, text_b"
            )
        return fields
    names = ("text_a", *(["text_b"] if len(row) > 1 + labelled else ()))
    names = (*names, "label") if labelled else names
    if len(names) != len(row):
        shape = "(text, label) or (text, text_b, label)" if labelled else "(text, text_b)"
        raise UserError(f"{where}: has {len(row)} values; give {shape}")
    return dict(zip(names, map(_plain, row)))


def _plain(value: object) -> object:
    """A NumPy scalar as Python's own; what JSON cannot hold as its type's name, for the reader."""
    item = getattr(value, "item", None)
    value = item() if item is not None else value
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):  # pandas' missing value, and its integers beside missing ones
        return None if value != value else int(value) if value.is_integer() else value
    if isinstance(value, (list, tuple)) or hasattr(value, "tolist"):  # an array of several labels
        given = value if isinstance(value, (list, tuple)) else value.tolist()
        return [_plain(one) for one in given]
    if isinstance(value, Mapping):  # a span
        return {str(name): _plain(one) for name, one in value.items()}
    kind = type(value).__name__
    raise UserError(f"a field of a row is a {kind}; it must be a text, a number or a list")
