"""Reading texts and labels from files and streams, line by line.

A table is TSV or CSV with a header or JSONL, one example a line, in UTF-8 (with or without a BOM).
Columns or fields are `text_a`, `text_b` (pairs only) and `label`; others are ignored, and JSONL
may say `text` for `text_a`. A line ends with a line feed, before which a carriage return may stand,
and with nothing else. A table of spans is JSONL with `spans`, or tagged tokens in columns
(`conll`), where a text has several lines.
Lines that hold nothing but white space are passed over, except where an answer is owed for every
line (`iter_lines`).
"""

from __future__ import annotations

import contextlib
import logging
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Iterable, Iterator, NamedTuple, Sequence

from fleetbert.core import charset, task_names
from fleetbert.core.errors import UserError
from fleetbert.data.records import (
    SEPARATORS,
    Numbered,
    decode,
    json_row,
    split_fields,
)
from fleetbert.data.records import Example as Example
from fleetbert.data.records import Format as Format
from fleetbert.data.records import Quoting as Quoting
from fleetbert.data.written import LineError, fault_of

log = logging.getLogger(__name__)

JSON_SUFFIXES = (".jsonl", ".json")
COLUMN_SUFFIXES = (".tsv", ".csv")  # files with a header
# Columns of tagged tokens; read as such wherever texts are wanted.
TAG_SUFFIXES = (".conll", ".bio", ".iob", ".bioes", ".bmes", ".bilou")


class Table(NamedTuple):
    """The examples of a file, and the lines that were skipped: (line number, reason)."""

    examples: list[Example]
    skipped: list[tuple[int, str]]


def table_format(
    path: str | Path,
    *,
    pair: bool | None,
    labelled: bool,
    quoting: Quoting = "auto",
    label: str = "name",
) -> Format:
    """JSONL if `path` ends in .jsonl or .json, else TSV or, with .csv, what its header is separated
    by. The header is read and checked.

    With `pair` every line needs a `text_b`; without, `text_b` is ignored. With `labelled` every
    line needs a label; without, a label is kept where there is one. `label` says how it is written,
    see `written`; what is no JSONL holds spans as tagged tokens in columns (`conll`). With
    `quoting` auto, .csv is quoted, and TSV if all of the file reads as such (`_is_quoted`); what
    was found is logged.
    """
    if Path(path).suffix.lower() in JSON_SUFFIXES:
        return Format("jsonl", None, pair, labelled, label=label)
    if label == "spans" and (labelled or Path(path).suffix.lower() not in COLUMN_SUFFIXES):
        return Format("conll", None, False, labelled, label=label)
    return _with_header(Path(path), pair, labelled, quoting)._replace(label=label)


def texts_format(path: str | Path, quoting: Quoting = "auto") -> Format:
    """For masked-language modelling: one text a line.

    A .tsv or .csv file needs a header and a .jsonl or .json file its fields, as in `table_format`;
    their `text_b` is taken where there is one.
    """
    suffix = Path(path).suffix.lower()
    if suffix in COLUMN_SUFFIXES:
        return _with_header(Path(path), None, False, quoting)
    return Format("jsonl" if suffix in JSON_SUFFIXES else "plain", None, None, False)


def warn_of_pairs(path: str | Path, form: Format) -> None:
    """Warn where a table has second texts that nobody reads. Of JSONL the first line tells it."""
    if form.pair is not False or form.apart or form.kind not in ("tsv", "jsonl"):
        return
    columns: Iterable[str] = form.columns or ()
    if form.kind == "jsonl":
        with opened(path) as file, contextlib.suppress(LineError):
            columns = [name for name, value in json_row(file.readline()).items() if value]
    if "text_b" in columns:
        *names, last = task_names.all_that(lambda shape: shape.pair)
        log.warning(
            f"{path}: its text_b is not read, as the task is of single texts; those of pairs are "
            f"{', '.join(names)} and {last}"
        )


def read_as(path: str | Path, form: Format, on_bad_line: str = "stop") -> Table:
    """Read all examples of a file.

    A line that cannot be used raises UserError with `path:line: reason`; with
    `on_bad_line="skip"` it is listed in `skipped` instead. A table in which nothing is left raises
    UserError too.
    """
    table = parse_lines(path, _lines(Path(path)), form, on_bad_line)
    check_not_empty(path, len(table.examples), len(table.skipped), table.skipped[:1])
    return table


def parse_lines(
    path: str | Path,
    numbered: Numbered,
    form: Format,
    on_bad_line: str,
) -> Table:
    """The examples of some whole records of `path`, maybe none; errors as in `read_as`."""
    if on_bad_line not in ("stop", "skip"):
        raise ValueError(f"on_bad_line is {on_bad_line!r}, not 'stop' or 'skip'")
    examples: list[Example] = []
    skipped: list[tuple[int, str]] = []
    for number, line in form.records(numbered):
        if number == 1:
            if form.columns is not None:
                continue
            line = charset.without_mark(line)
        if form.is_empty(line):
            continue
        try:
            example = form.parse(line, number)
            examples += example.apart() if form.apart else example.documents()
        except LineError as error:
            if not line.decode("utf-8", "replace").strip():  # white space of Unicode
                continue
            if on_bad_line == "stop":
                raise UserError(f"{path}:{number + error.line}: {error}") from None
            skipped.append((number + error.line, str(error)))
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


def lines_at(
    path: str | Path, numbers: Iterable[int], form: Format | None = None
) -> dict[int, str]:
    """The lines of a file (records with `form`) with these numbers (from 1) as they stand; empty
    if it cannot be read."""
    wanted = set(numbers)
    found = {}
    lines = _lines(Path(path))
    try:
        for number, line in form.records(lines) if form else lines:
            if number in wanted:
                found[number] = line.rstrip(b"\r\n").decode("utf-8", "replace")
                if len(found) == len(wanted):
                    break
    except UserError:
        return {}
    return found


def iter_lines(
    stream: Iterable[bytes],
    *,
    pair: bool,
    jsonl: bool | None = None,
    quoting: Quoting = "auto",
    form: Format | None = None,
) -> Iterator[tuple[int, Example | UserError]]:
    """The lines of `fleetbert predict`'s input, each as (line number, example or its error).

    `form` is that of a table which is known to be one. Where it and `jsonl` are None the first line
    tells the format: one that starts with `{` is JSONL, and one that has a column `text_a` (with a
    `text_b` for pairs) is the header of a TSV table, which gives no example itself; anything else
    is plain lines, of pairs two texts with one tab between them. With `quoting` auto such a table
    is quoted if its header is. Reads lazily; a bad line, an empty one included, stops no other.
    """
    lines: Iterator[tuple[int, bytes]] = enumerate(stream, 1)
    number, line = next(lines, (0, b""))
    if not number:
        return
    line = charset.without_mark(line)
    if form is None and jsonl is None:
        jsonl = line.lstrip().startswith(b"{")
        form = None if jsonl else _header_or_none(line, pair, quoting)
    if form is None or form.kind == "conll":  # else it is the header
        lines = chain([(number, line)], lines)
    form = form or Format("jsonl" if jsonl else "plain", None, pair, False, label="")
    for number, line in form.records(lines):
        if form.kind == "conll" and form.is_empty(line):
            continue
        try:
            yield number, form.parse(line, number)
        except LineError as error:
            yield number, UserError(f"line {number + error.line}: {error}")


@contextlib.contextmanager
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


def check_header(path: str | Path) -> None:
    """UserError unless a file of columns has the texts that can be asked."""
    _header(Path(path), None, False, "auto")


def _with_header(path: Path, pair: bool | None, labelled: bool, quoting: Quoting) -> Format:
    form = _header(path, pair, labelled, quoting)
    if quoting == "auto" and not form.quoted:
        form = form._replace(quoted=_is_quoted(path, form))
    if form.quoted and path.suffix.lower() != ".csv":
        _say(f"{path}: its fields are quoted as in CSV (quoting: none takes quotes as characters)")
    return form


def _header(path: Path, pair: bool | None, labelled: bool, quoting: Quoting) -> Format:
    with opened(path) as file:
        line = file.readline()
    if not line:
        raise UserError(f"{path}: is empty; give a table with the columns text_a and label")
    try:
        text = decode(charset.without_mark(line))
        form = _form_of_header(text, path.suffix.lower() == ".csv", pair, labelled, quoting)
    except LineError as error:
        raise UserError(f"{path}:1: {error}") from None
    columns = form.columns or []
    needed = ["text_a"] + ["text_b"] * bool(pair) + ["label"] * labelled
    seen = ", ".join(repr(column[:40]) for column in columns[:12])
    for column in needed:
        if column not in columns:
            raise UserError(
                f"{path}:1: the header has no column {column!r}, only {seen}; "
                f"name the {SEPARATORS[form.separator]}-separated columns {', '.join(needed)}"
            )
    for column in ("text_a", "text_b", "label"):
        if columns.count(column) > 1:
            raise UserError(f"{path}:1: the header names {column!r} twice; keep one of them")
    return form


def _form_of_header(
    text: str, is_csv: bool, pair: bool | None, labelled: bool, quoting: Quoting
) -> Format:
    """That of a first line; auto is settled by it for .csv and for quoted names only."""
    separator = "\t"
    if is_csv:
        # Spreadsheets write semicolons where the comma is a decimal mark.
        names = {mark: [name.strip(' "') for name in text.split(mark)] for mark in (",", ";", "\t")}
        separator = next((mark for mark in names if "text_a" in names[mark]), ",")
    columns = [name.strip() for name in text.split("\t")]
    is_marked = any(f'"{name}"' in columns for name in ("text_a", "text_b", "label"))
    quoted = quoting == "minimal" or (quoting == "auto" and (is_csv or is_marked))
    form = Format("tsv", None, pair, labelled, separator, quoted)
    return form._replace(columns=[name.strip() for name in split_fields(text, form)])


def _is_quoted(path: Path, form: Format) -> bool:
    """Whether a TSV table whose header is not quoted was written with quotes where needed.

    So it is if some field reads as quoted that had to be (it holds a tab, a quote or a line end),
    and none speaks against it: a quote inside a field without quotes, text behind a closing quote,
    a quote that is not closed. Lines that make one record, but each have the header's columns by
    themselves, must be fewer than the records that have them only when they are quoted.
    """
    assert form.columns is not None
    count, raw, quoted = len(form.columns), form, form._replace(quoted=True)
    first = against = 0
    quoted_only = raw_too = 0
    for number, record in quoted.records(_lines(path)):
        if b'"' not in record:
            continue
        text = record.decode("utf-8", "replace").rstrip("\r\n")
        plain = [split_fields(line.rstrip("\r"), raw) for line in text.split("\n")]
        marked = [value for value in plain[0] if '"' in value]
        try:
            values = split_fields(text, quoted)
        except LineError:
            values = []
        if not values or (marked and not marked[0].startswith('"')):
            against, raw_too = number, 0
            break
        if len(values) != count or not any(mark in value for value in values for mark in '"\t\n'):
            continue
        first = first or number
        raw_fits = all(len(fields) == count for fields in plain)
        quoted_only += not raw_fits
        if raw_fits and len(plain) > 1:
            raw_too, against = raw_too + 1, against or number
    if first and against and (raw_too == 0 or quoted_only <= raw_too):
        _say(
            f"{path}:{first}: looks quoted, but line {against} does not: quotes are taken as "
            "characters (quoting: minimal takes them as quotes)"
        )
        return False
    return bool(first)


@lru_cache(maxsize=None)
def _say(line: str) -> None:
    """Once in a process."""
    log.info(line)


def _header_or_none(line: bytes, pair: bool, quoting: Quoting) -> Format | None:
    try:
        form = _form_of_header(decode(line), False, pair, False, quoting)
    except LineError:
        return None
    columns = form.columns or []
    return form if "text_a" in columns and (not pair or "text_b" in columns) else None


def check_texts(name: str, texts: Iterable[object]) -> None:
    """UserError at the first that is no text (`fault_of`), with its index in the list `name`."""
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise UserError(f"{name}[{index}] is not a text but {type(text).__name__}")
        fault = fault_of(text)
        if fault is not None:
            raise UserError(f"{name}[{index}] {fault}; leave it out")
