"""Reading texts and labels from files and streams, line by line.

A table is TSV with a header or JSONL, one example a line, in UTF-8 (with or without a BOM).
Columns or fields are `text_a`, `text_b` (pairs only) and `label`; others are ignored, and JSONL
may say `text` for `text_a`. TSV is raw: a quote is a character, and nothing is escaped.
Lines that hold nothing but white space are passed over, except where an answer is owed for every
line (`iter_lines`).
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Dict, Iterable, Iterator, NamedTuple, Sequence

from fleetbert.errors import UserError

Row = Dict[str, object]  # of JSON or of a table, by column
BOM = b"\xef\xbb\xbf"
JSON_SUFFIXES = (".jsonl", ".json")


class Example(NamedTuple):
    """One text or pair of texts, with the number of its line (from 1) for error messages."""

    text_a: str
    text_b: str | None
    label: str | None
    line: int


class Table(NamedTuple):
    """The examples of a file, and the lines that were skipped: (line number, reason)."""

    examples: list[Example]
    skipped: list[tuple[int, str]]


class LineError(ValueError):
    """A line that cannot be used; its text is the reason, without the place."""


class Format(NamedTuple):
    """How the lines of a file become examples.

    kind: "tsv", "jsonl" or "plain" (the whole line is the text).
    columns: the header of a TSV table, else None.
    pair: whether a `text_b` is needed; None takes it where there is one.
    labelled: whether a label is needed.
    """

    kind: str
    columns: list[str] | None
    pair: bool | None
    labelled: bool

    def parse(self, line: bytes, number: int) -> Example:
        if self.kind == "plain":
            return _from_plain(line, number, False)
        if self.columns is None:
            return _from_json(line, number, self.pair, self.labelled)
        return _from_tsv(line, number, self.columns, self.pair, self.labelled)


def table_format(path: str | Path, *, pair: bool, labelled: bool) -> Format:
    """JSONL if `path` ends in .jsonl or .json, else TSV, whose header is read and checked.

    With `pair` every line needs a `text_b`; without, `text_b` is ignored. With `labelled` every
    line needs a label; without, a label is kept where there is one. Integer and boolean labels of
    JSONL become text ("1", "true").
    """
    if Path(path).suffix.lower() in JSON_SUFFIXES:
        return Format("jsonl", None, pair, labelled)
    return Format("tsv", _header(Path(path), pair, labelled), pair, labelled)


def texts_format(path: str | Path) -> Format:
    """For masked-language modelling: one text a line.

    A .tsv file needs a header and a .jsonl or .json file its fields, as in `table_format`; their
    `text_b` is taken where there is one.
    """
    suffix = Path(path).suffix.lower()
    if suffix == ".tsv":
        return Format("tsv", _header(Path(path), None, False), None, False)
    return Format("jsonl" if suffix in JSON_SUFFIXES else "plain", None, None, False)


def read_as(path: str | Path, form: Format, on_bad_line: str = "stop") -> Table:
    """Read all examples of a file.

    A line that cannot be used raises UserError with `path:line: reason`; with
    `on_bad_line="skip"` it is listed in `skipped` instead. A table in which nothing is left raises
    UserError too.
    """
    table = parse_lines(path, _lines(Path(path)), form, on_bad_line)
    check_not_empty(path, len(table.examples), len(table.skipped), table.skipped[:1])
    return table


def read(path: str | Path, *, pair: bool, labelled: bool, on_bad_line: str = "stop") -> Table:
    """`read_as` its `table_format`."""
    return read_as(path, table_format(path, pair=pair, labelled=labelled), on_bad_line)


def read_texts(path: str | Path, on_bad_line: str = "stop") -> Table:
    """`read_as` its `texts_format`."""
    return read_as(path, texts_format(path), on_bad_line)


def parse_lines(
    path: str | Path,
    numbered: Iterable[tuple[int, bytes]],
    form: Format,
    on_bad_line: str,
) -> Table:
    """The examples of some of the lines of `path`, which may be none; errors as in `read_as`."""
    if on_bad_line not in ("stop", "skip"):
        raise ValueError(f"on_bad_line is {on_bad_line!r}, not 'stop' or 'skip'")
    examples: list[Example] = []
    skipped: list[tuple[int, str]] = []
    for number, line in numbered:
        if number == 1:
            if form.columns is not None:
                continue
            line = line[len(BOM) :] if line.startswith(BOM) else line
        if not line.strip():
            continue
        try:
            examples.append(form.parse(line, number))
        except LineError as error:
            if on_bad_line == "stop":
                raise UserError(f"{path}:{number}: {error}") from None
            skipped.append((number, str(error)))
    return Table(examples, skipped)


def check_not_empty(
    path: str | Path, examples: int, bad: int, first: Sequence[tuple[int, str]]
) -> None:
    """UserError if a table has no examples; `bad` lines were skipped, `first` begins with the
    first of them."""
    if examples:
        return
    if bad:
        number, reason = first[0]
        raise UserError(f"{path}: all {bad} lines are bad, the first at line {number}: {reason}")
    raise UserError(f"{path}: holds no example; give a file with one example a line")


def lines_at(path: str | Path, numbers: Iterable[int]) -> dict[int, str]:
    """The lines of a file with these numbers (from 1) as they stand; empty if it cannot be read."""
    wanted = set(numbers)
    lines = {}
    try:
        for number, line in _lines(Path(path)):
            if number in wanted:
                lines[number] = line.rstrip(b"\r\n").decode("utf-8", "replace")
                if len(lines) == len(wanted):
                    break
    except UserError:
        return {}
    return lines


def parse_question(line: bytes, line_number: int, pair: bool, jsonl: bool) -> Example:
    """One line of `fleetbert predict`'s input, where a bad line must not stop the others.

    With `jsonl` an object with `text` (or `text_a`), for pairs `text_b`; without, the whole line
    is the text, and a pair is two texts with one tab between them. Raises UserError for a bad
    line, an empty one included.
    """
    try:
        if jsonl:
            return _from_json(line, line_number, pair, False)
        return _from_plain(line, line_number, pair)
    except LineError as error:
        raise UserError(f"line {line_number}: {error}") from None


def iter_lines(
    stream: BinaryIO, *, pair: bool, jsonl: bool | None = None
) -> Iterator[tuple[int, Example | UserError]]:
    """The lines of `fleetbert predict`'s input, each as (line number, example or its error).

    Where `jsonl` is None the first line tells the format: one that starts with `{` is JSONL, and
    one that has a column `text_a` (with a `text_b` for pairs) is the header of a TSV table, which
    gives no example itself; anything else is plain lines as in `parse_question`. Reads lazily.
    """
    columns: list[str] | None = None
    for number, line in enumerate(stream, 1):
        if number == 1:
            if line.startswith(BOM):
                line = line[len(BOM) :]
            if jsonl is None:
                jsonl = line.lstrip().startswith(b"{")
                if not jsonl:
                    columns = _header_or_none(line, pair)
                    if columns:
                        continue
        try:
            if columns:
                yield number, _from_tsv(line, number, columns, pair, False)
            else:
                yield number, parse_question(line, number, pair, bool(jsonl))
        except LineError as error:
            yield number, UserError(f"line {number}: {error}")
        except UserError as error:
            yield number, error


@contextmanager
def opened(path: str | Path) -> Iterator[BinaryIO]:
    """The file as bytes; a UserError says why it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            yield file
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; check the path of the data") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a directory; give a .tsv or .jsonl file in it") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{str(path)!r}: cannot be read ({reason})") from None


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers from 1."""
    with opened(path) as file:
        yield from enumerate(file, 1)


def _header(path: Path, pair: bool | None, labelled: bool) -> list[str]:
    with opened(path) as file:
        line = file.readline()
    if not line:
        raise UserError(f"{path}: is empty; give a table with the columns text_a and label")
    try:
        columns = _decode(line[len(BOM) :] if line.startswith(BOM) else line).split("\t")
    except LineError as error:
        raise UserError(f"{path}:1: {error}") from None
    columns = [column.strip() for column in columns]
    needed = ["text_a"] + ["text_b"] * bool(pair) + ["label"] * labelled
    seen = ", ".join(repr(column[:40]) for column in columns[:12])
    for column in needed:
        if column not in columns:
            raise UserError(
                f"{path}:1: the header has no column {column!r}, only {seen}; "
                f"name the tab-separated columns {', '.join(needed)}"
            )
    for column in ("text_a", "text_b", "label"):
        if columns.count(column) > 1:
            raise UserError(f"{path}:1: the header names {column!r} twice; keep one of them")
    return columns


def _header_or_none(line: bytes, pair: bool) -> list[str] | None:
    try:
        columns = [column.strip() for column in _decode(line).split("\t")]
    except LineError:
        return None
    if "text_a" in columns and (not pair or "text_b" in columns):
        return columns
    return None


def _from_tsv(
    line: bytes, number: int, columns: Sequence[str], pair: bool | None, labelled: bool
) -> Example:
    values = _decode(line).split("\t")
    if len(values) != len(columns):
        raise LineError(
            f"has {len(values)} tab-separated columns where the header has {len(columns)}"
        )
    return _example(dict(zip(columns, values)), number, pair, labelled)


def _from_json(line: bytes, number: int, pair: bool | None, labelled: bool) -> Example:
    try:
        row = json.loads(_decode(line))
    except LineError:
        raise
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", None) or "too deep or too large"
        raise LineError(f"is not valid JSON ({reason}); write one object a line") from None
    if not isinstance(row, dict):
        raise LineError("is not a JSON object; write one object with 'text_a' a line")
    if "text_a" not in row and "text" in row:
        row["text_a"] = row["text"]
    return _example(row, number, pair, labelled)


def _from_plain(line: bytes, number: int, pair: bool) -> Example:
    text = _decode(line)
    if not pair:
        return _example({"text_a": text}, number, False, False)
    texts = text.split("\t")
    if len(texts) != 2:
        raise LineError(f"has {len(texts)} tab-separated columns where a pair needs two")
    return _example({"text_a": texts[0], "text_b": texts[1]}, number, True, False)


def _decode(line: bytes) -> str:
    try:
        text = line.rstrip(b"\r\n").decode("utf-8")
    except UnicodeDecodeError as error:
        raise LineError(f"is not valid UTF-8 at byte {error.start + 1}; convert the file") from None
    if "\0" in text:
        raise LineError("holds a NUL character; is the file text?")
    return text


def _example(row: Row, number: int, pair: bool | None, labelled: bool) -> Example:
    """Check one row; `pair` None takes text_b where there is one."""
    text_a = _text(row, "text_a")
    text_b = None
    if pair or (pair is None and row.get("text_b")):
        text_b = _text(row, "text_b")
    return Example(text_a, text_b, _label(row, labelled), number)


def _text(row: Row, field: str) -> str:
    text = row.get(field)
    if text is None:
        raise LineError(f"has no {field!r}")
    if not isinstance(text, str):
        raise LineError(f"{field!r} is not a text but {type(text).__name__}")
    if not text.strip():
        raise LineError(f"{field!r} is empty")
    return _sound(text, field)


def _label(row: Row, labelled: bool) -> str | None:
    label = row.get("label")
    if isinstance(label, (bool, int)):
        label = json.dumps(label)
    if label is not None and not isinstance(label, str):
        raise LineError(f"'label' is not a text or an integer but {type(label).__name__}")
    label = (label or "").strip()
    if not label:
        if labelled:
            raise LineError("has no 'label'")
        return None
    return _sound(label, "label")


def _sound(text: str, field: str) -> str:
    """Refuse what JSON escapes can smuggle past the decoder: NUL and half surrogate pairs."""
    if "\0" in text:
        raise LineError(f"{field!r} holds a NUL character")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise LineError(
            f"{field!r} holds half of a surrogate pair, which is no character"
        ) from None
    return text
