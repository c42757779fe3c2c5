"""Tables that a program holds: written as JSONL, which the readers of files then check."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import (
    Any,
    Iterable,
    Iterator,
    Literal,
    Mapping,
    Protocol,
    Sequence,
    TypeVar,
    Union,
    cast,
)

from fleetbert.config import Columns
from fleetbert.core import files
from fleetbert.core.errors import UserError
from fleetbert.core.files import below_home
from fleetbert.data.read import USUAL, lacks, names_of

Key = TypeVar("Key", str, int)
Row = Union[str, Mapping[str, object], Sequence[object]]


class Frame(Protocol):
    """A pandas DataFrame, as far as it is needed."""

    def to_dict(self, orient: Literal["records"]) -> Iterable[Mapping[str, object]]: ...


# A path; rows; columns by name; a pandas DataFrame; a datasets.Dataset, which iterates over rows.
Table = Union[str, "os.PathLike[str]", Mapping[str, Sequence[object]], Iterable[Row], Frame]

# The split of a DatasetDict that a table is, by its key: the first that is there.
SPLITS = {
    "data.train": ("train",),
    "data.dev": ("validation", "dev"),
    "calibration.data": ("train",),
    "selection.data": ("validation", "dev"),
    "gate.data": ("validation", "dev", "test"),
    "data": ("test", "validation", "dev"),
}


def of_splits(tables: Mapping[str, Table | None]) -> dict[str, Table | None]:
    """The tables by their keys, with the split of each that is a DatasetDict. That of `data.train`
    brings `data.dev` too, where none is given. UserError where it has no such split."""
    given = dict(tables)
    train = _splits(given.get("data.train"))
    if "data.dev" in given and given["data.dev"] is None and train:
        given["data.dev"] = next((train[n] for n in SPLITS["data.dev"] if n in train), None)
    for key, table in given.items():
        if splits := _splits(table):
            name = next((name for name in SPLITS[key] if name in splits), None)
            if name is None:
                raise UserError(
                    f"{key}: has the tables {', '.join(map(repr, splits))}, and none is called "
                    f"{SPLITS[key][0]}; give one of them, like data[{next(iter(splits))!r}]"
                )
            given[key] = splits[name]
    return given


def as_file(
    name: str,
    table: Table,
    folder: Path,
    labelled: bool = True,
    columns: Columns = USUAL,
    label: str = "name",
) -> Path:
    """The path of a table: its own, or `folder`/`name`.jsonl with its rows.

    A row is a mapping with text_a (or text), text_b and label, or the names that `columns` or the
    kind of `label` have for these (`read.names_of`); a tuple (text_a, label) or (text_a, text_b,
    label), without `labelled` (text_a,) or (text_a, text_b); or a text. A tuple of lists is as many
    columns. What labels may be, the task says. UserError names the row, from 0, that is none of
    these.
    """
    if isinstance(table, (str, os.PathLike)):
        return Path(below_home(table))
    names = names_of(columns, label)
    lines = [
        json.dumps(_fields(f"{name}, row {number}", row, labelled, names, columns)) + "\n"
        for number, row in enumerate(_rows(name, table, names))
    ]
    if not lines:
        raise UserError(f"{name}: has no rows")
    path = folder / f"{name}.jsonl"
    with files.writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        with files.replacing(path) as stream:
            stream.write("".join(lines).encode())
    return path


def by_row(message: str, name: str, path: Path, folder: str | Path) -> str:
    """A message with rows, from 0, of the table `name` instead of lines of its file at `path`,
    where this is in `folder`, which nobody will see."""
    if path.parent != Path(folder):
        return message
    place = re.compile(re.escape(str(path)) + r"(?::(\d+))?")
    return place.sub(lambda at: f"{name}, row {int(at[1]) - 1}" if at[1] else name, message)


def first_pair(path: str | Path, columns: Columns = USUAL) -> int | None:
    """The row, from 0, of the first pair of texts in a file that `as_file` has written."""
    [column] = columns.names()["text_b"]
    with Path(path).open(encoding="utf-8") as lines:
        return next((n for n, line in enumerate(lines) if json.loads(line).get(column)), None)


def has_integer_labels(path: str | Path, columns: Columns) -> bool:
    """Whether all labels in a file that `as_file` has written are integers of 64 bits, as JSON
    readers take them, or lists of them."""
    [column] = columns.names()["label"]

    def is_integer(label: object) -> bool:
        if isinstance(label, list):
            return all(map(is_integer, label))
        return type(label) is int and -(2**63) <= label < 2**63

    with Path(path).open(encoding="utf-8") as lines:
        return all(is_integer(json.loads(line).get(column)) for line in lines)


def refuse_pair(name: str, row: int | None, reader: str, labelled: bool = True) -> None:
    """UserError where `first_pair` found one, of which `reader` would not read the second text.
    labelled: as in `as_file`."""
    if row is not None:
        remedy = (
            "give (text, label), or name a task of pairs"
            if labelled
            else "this table is of texts without labels: give each text alone"
        )
        raise UserError(f"{name}, row {row}: has two texts, and {reader} reads one; {remedy}")


def _splits(table: Any) -> Mapping[str, Table]:
    """The tables of a DatasetDict by name; none of what is a table itself."""
    is_dict = isinstance(table, Mapping) and any(hasattr(t, "features") for t in table.values())
    return table if is_dict else {}


def _rows(
    name: str,
    table: Mapping[str, Sequence[object]] | Iterable[Row] | Frame,
    names: Mapping[str, Sequence[str]],
) -> Iterator[Row]:
    if isinstance(table, tuple) and (several := _as_columns(table)):
        return zip(*_of_equal_length(name, dict(enumerate(several))).values())
    if isinstance(table, Mapping):
        return _of_columns(name, {key: _column(name, key, table[key]) for key in table})
    to_dicts = getattr(table, "to_dicts", None)  # of a polars DataFrame
    if to_dicts is not None:
        return iter(to_dicts())
    to_dict = getattr(table, "to_dict", None)
    columns = getattr(table, "columns", None)
    if columns is not None and to_dict is not None:
        known = [column for column in columns if any(column in of for of in names.values())]
        for column in known:
            if known.count(column) > 1:
                raise UserError(f"{name}: has two columns {column!r}; keep one of them")
        return iter(to_dict("records"))
    features = getattr(table, "features", None)  # of a datasets.Dataset
    if features is not None:
        return (_named(row, features) for row in cast("Iterable[Row]", table))
    return iter(cast("Iterable[Row]", table))


def _column(name: str, column: str, values: object) -> list[object]:
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise UserError(
            f"{name}: the column {column!r} is a {type(values).__name__}; give a list with a value "
            "for each row"
        )
    return list(values)


def _as_columns(table: tuple[Any, ...]) -> list[list[object]]:
    """The columns of (texts, labels), (texts, second texts, labels); none of a tuple of rows."""
    columns = [unboxed(column) for column in table]
    are_columns = 2 <= len(columns) <= 3 and all(isinstance(column, list) for column in columns)
    return columns if are_columns and all(isinstance(text, str) for text in columns[0]) else []


def _of_columns(name: str, columns: Mapping[str, list[object]]) -> Iterator[Row]:
    columns = _of_equal_length(name, columns)
    return (dict(zip(columns, values)) for values in zip(*columns.values()))


def _of_equal_length(name: str, columns: Mapping[Key, list[object]]) -> Mapping[Key, list[object]]:
    lengths = {column: len(values) for column, values in columns.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{column!r} has {length}" for column, length in lengths.items())
        raise UserError(f"{name}: its columns have unequal lengths: {shown}; give a value per row")
    return columns


def _named(value: Any, feature: Any) -> Any:
    """A Dataset's row, or a part of it, with labels' names instead of their numbers where the
    Dataset has names; None for -1, the Hub's mark of rows without a label."""
    names = getattr(feature, "names", None)
    if names is not None:
        value = unboxed(value)
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return value if not is_number else names[value] if value >= 0 else None
    if isinstance(feature, Mapping) and isinstance(value, Mapping):
        return {key: _named(inner_value, feature.get(key)) for key, inner_value in value.items()}
    inner = feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)
    listed = unboxed(value)
    if inner is not None and isinstance(listed, list):
        return [_named(element, inner) for element in listed]
    return value


def _fields(
    where: str, row: Row, labelled: bool, names: Mapping[str, Sequence[str]], columns: Columns
) -> dict[str, object]:
    """What the file has of a row: by its own names, else by the first that `names` has for each
    field."""
    if isinstance(row, str):
        return {names["text_a"][0]: row}
    if isinstance(row, Mapping):
        present = {field: next((n for n in of if n in row), None) for field, of in names.items()}
        if present["text_a"] is None:
            missing = ["text_a", *(["label"] if labelled and present["label"] is None else [])]
            seen = list(map(str, row))
            raise UserError(f"{where}: {lacks(seen, [dict(row)], missing, columns, names)}")
        fields = {n: _plain(row[n]) for n in present.values() if n is not None}
        if labelled and present["label"] is None:  # the reader tells which column could be it
            others = {str(n): value for n, value in row.items() if isinstance(value, (str, int))}
            fields = {**others, **fields}
        return fields
    row = unboxed(row)
    if not isinstance(row, Sequence) or isinstance(row, bytes):
        raise UserError(f"{where}: is a {type(row).__name__}; give a tuple, a dict or a text")
    order = ["text_a"] + ["text_b"] * (len(row) > 1 + labelled) + ["label"] * labelled
    if len(order) != len(row):
        labels = "(text, label), (text, text_b, label) or (question, context, answers)"
        shape = labels if labelled else "(text, text_b)"
        raise UserError(f"{where}: has {len(row)} values; give {shape}")
    return {names[field][0]: _plain(value) for field, value in zip(order, row)}


def unboxed(value: Any) -> Any:
    """NumPy's, PyTorch's and Paddle's scalars and arrays, and pandas' series, as Python's own."""
    to_list = getattr(value, "tolist", None)
    return value if to_list is None else to_list()


def _plain(value: object) -> object:
    """A NumPy scalar as Python's own; what JSON cannot hold as its type's name, for the reader."""
    value = unboxed(value)
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):  # pandas' missing value, and its integers beside missing ones
        return None if value != value else int(value) if value.is_integer() else value
    if isinstance(value, (list, tuple)):  # of several labels, or spans
        return [_plain(element) for element in value]
    if isinstance(value, Mapping):  # a span
        return {str(name): _plain(inner_value) for name, inner_value in value.items()}
    kind = type(value).__name__
    raise UserError(f"a field of a row is a {kind}; it must be a text, a number or a list")
