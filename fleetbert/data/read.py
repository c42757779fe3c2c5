"""Reading texts and labels from files and streams, line by line.

A table is TSV or CSV with a header or JSONL, one example a line, in UTF-8 (with or without a BOM).
Columns or fields are `text_a` (or `text`), `text_b` (pairs only) and `label`, or those that
`config.Columns` names; others are ignored. A line ends with a line feed, before which a carriage
return may stand, and with nothing else. A table of spans is JSONL with `spans`, or tagged tokens in
columns (`conll`), where a text has several lines.
Lines that hold nothing but white space are passed over, except where an answer is owed for every
line (`iter_lines`).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Iterable, Iterator, Mapping, NamedTuple, Sequence

from fleetbert.config import Columns
from fleetbert.core import charset, task_names
from fleetbert.core.errors import UserError
from fleetbert.data import squad
from fleetbert.data.records import (
    QUOTED_FIELD,
    SEPARATORS,
    Numbered,
    Row,
    decode,
    json_row,
    split_fields,
)
from fleetbert.data.records import Example as Example
from fleetbert.data.records import Format as Format
from fleetbert.data.written import LineError, fault_of

log = logging.getLogger(__name__)

JSON_SUFFIXES = (".jsonl", ".json")
COLUMN_SUFFIXES = (".tsv", ".csv")  # files with a header
# Columns of tagged tokens; read as such wherever texts are wanted.
TAG_SUFFIXES = (".conll", ".bio", ".iob", ".bioes", ".bmes", ".bilou")
# What fields of JSONL are called first, by how labels are written.
FIELDS = {
    "spans": {"label": "spans"},
    "answers": {"text_a": "question", "text_b": "context", "label": "answers"},
}
FIRST_ROWS = 100  # that tell what columns hold
USUAL = Columns()


class Table(NamedTuple):
    """The examples of a file, and the lines that were skipped: (line number, reason)."""

    examples: list[Example]
    skipped: list[tuple[int, str]]


def table_format(
    path: str | Path,
    *,
    pair: bool | None,
    labelled: bool,
    columns: Columns = USUAL,
    label: str = "name",
) -> Format:
    """JSONL if `path` ends in .jsonl or .json, else TSV or, with .csv, what its header is separated
    by. The header is read and checked.

    With `pair` every line needs a `text_b`; without, `text_b` is ignored. With `labelled` every
    line needs a label; without, a label is kept where there is one. `label` says how it is written,
    see `written`; what is no JSONL holds spans as tagged tokens in columns (`conll`). With
    `columns.quoting` auto, .csv is quoted, and TSV if all of the file reads as such (`_is_quoted`);
    what was found is logged.
    """
    suffix = Path(path).suffix.lower()
    if suffix in JSON_SUFFIXES:
        if label == "answers" and squad.is_squad(path):
            _refuse_names(path, columns, "questions, contexts and answers, under SQuAD's names")
            return Format("squad", None, pair, labelled, squad.NAMES, label=label)
        form = Format("jsonl", None, pair, labelled, names_of(columns, label), label=label)
        _check_fields(Path(path), form, columns)
        return form
    if label == "spans" and (labelled or suffix not in COLUMN_SUFFIXES):
        _refuse_names(
            path,
            columns,
            "tagged tokens in columns without names, the token first and its tag last",
        )
        return Format("conll", None, False, labelled, label=label)
    if suffix in TAG_SUFFIXES:
        taggers = task_names.all_that(lambda shape: shape.label == "spans")
        raise UserError(
            f"{path}: holds tagged tokens, which task.name={' or '.join(taggers)} learns; "
            "choose that, or give texts with labels as .tsv, .csv or .jsonl"
        )
    return _with_header(Path(path), pair, labelled, columns)._replace(label=label)


def names_of(columns: Columns, label: str) -> dict[str, list[str]]:
    """`Columns.names` of JSONL, where labels are written so; first the usual name of each field."""
    names = columns.names()
    for field, usual in FIELDS.get(label, {}).items():
        if columns.given(field) is None:
            names[field] = [usual, *names[field]]
    return names


def texts_format(path: str | Path, columns: Columns = USUAL) -> Format:
    """For masked-language modelling: one text a line.

    A .tsv or .csv file needs a header and a .jsonl or .json file its fields, as in `table_format`;
    their `text_b` is taken where there is one.
    """
    suffix = Path(path).suffix.lower()
    if suffix in COLUMN_SUFFIXES:
        return _with_header(Path(path), None, False, columns)
    if suffix in JSON_SUFFIXES:
        return Format("jsonl", None, None, False, columns.names())
    return Format("plain", None, None, False)


def _refuse_names(path: str | Path, columns: Columns, holds: str) -> None:
    """UserError if columns are named of a table whose layout has none to name."""
    for field in columns.KEYS:
        if columns.given(field):
            raise UserError(f"{path}: has {holds}; leave {columns.KEYS[field]} out")


def warn_of_pairs(path: str | Path, form: Format) -> None:
    """Warn where a table has second texts that nobody reads. Of JSONL the first line tells it."""
    if form.pair is not False or form.apart or form.kind not in ("tsv", "jsonl"):
        return
    columns: Sequence[str] = form.columns or ()
    if form.kind == "jsonl":
        with opened(path) as file, contextlib.suppress(LineError):
            columns = [name for name, value in json_row(file.readline()).items() if value]
    column = form.column("text_b", columns)
    if column is not None:
        *names, last = task_names.all_that(lambda shape: shape.pair)
        log.warning(
            f"{path}: its {column} is not read, as the task is of single texts; those of pairs are "
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
    texts = {}
    lines = _lines(Path(path))
    try:
        for number, line in form.records(lines) if form else lines:
            if number in wanted:
                texts[number] = line.rstrip(b"\r\n").decode("utf-8", "replace")
                if len(texts) == len(wanted):
                    break
    except UserError:
        return {}
    return texts


def iter_lines(
    stream: Iterable[bytes],
    *,
    pair: bool,
    jsonl: bool | None = None,
    columns: Columns = USUAL,
    form: Format | None = None,
) -> Iterator[tuple[int, bytes, Example | UserError]]:
    """The lines of `fleetbert predict`'s input, or the records of a table, each as (line number,
    line, example or its error).

    `form` is that of a table which is known to be one. Where it and `jsonl` are None the first line
    tells the format: one that starts with `{` is JSONL, and one that names the texts' columns is
    the header of a TSV table, which gives no example itself (`text` alone is a text); anything else
    is plain lines, of pairs two texts with one tab between them. With `columns.quoting` auto such a
    table is quoted if its header is. Reads lazily; a bad line, an empty one included, stops no
    other.
    """
    lines: Iterator[tuple[int, bytes]] = enumerate(stream, 1)
    number, line = next(lines, (0, b""))
    if not number:
        return
    line = charset.without_mark(line)
    if form is None and jsonl is None:
        jsonl = line.lstrip().startswith(b"{")
        form = None if jsonl else _header_or_none(line, pair, columns)
    if form is None or form.columns is None:  # else it is the header
        lines = chain([(number, line)], lines)
    if form is None and jsonl:
        form = Format("jsonl", None, pair, False, columns.names(), label="")
        for field in ("text_a", "text_b") if pair else ():
            form.names[field].append(FIELDS["answers"][field])
    form = form or Format("plain", None, pair, False, label="")
    for number, line in form.records(lines):
        if form.kind == "conll" and form.is_empty(line):
            continue
        try:
            yield number, line, form.parse(line, number)
        except LineError as error:
            yield number, line, UserError(f"line {number + error.line}: {error}")


@contextlib.contextmanager
def opened(path: str | Path) -> Iterator[BinaryIO]:
    """The file as bytes; a UserError says why it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            yield file
    except FileNotFoundError:
        if str(path) == "-":
            raise UserError(
                "-: the standard input is read by ask, label and predict only; name a file"
            ) from None
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


def _with_header(path: Path, pair: bool | None, labelled: bool, columns: Columns) -> Format:
    form = _header(path, pair, labelled, columns)
    if columns.quoting == "auto" and not form.quoted:
        form = form._replace(quoted=_is_quoted(path, form))
    if form.quoted and path.suffix.lower() != ".csv":
        _say(f"{path}: its fields are quoted as in CSV (quoting: none takes quotes as characters)")
    return form


def _header(path: Path, pair: bool | None, labelled: bool, columns: Columns) -> Format:
    with opened(path) as file:
        line = file.readline()
    if not line:
        raise UserError(f"{path}: is empty; give a table with the columns text_a and label")
    try:
        text = decode(charset.without_mark(line))
        form = _form_of_header(text, path.suffix.lower() == ".csv", pair, labelled, columns)
    except LineError as error:
        raise UserError(f"{path}:1: {error}") from None
    header = form.columns or []
    missing = [field for field in _needed(form) if form.column(field, header) is None]
    if missing:
        header_line = f"the {SEPARATORS[form.separator]}-separated header"
        rows = list(_first_rows(path, form))
        raise UserError(
            f"{path}:1: {header_line} {lacks(header, rows, missing, columns, form.names)}"
        )
    for field in form.names:
        column = form.column(field, header)
        if column is not None and header.count(column) > 1:
            raise UserError(f"{path}:1: the header names {column!r} twice; keep one of them")
    return form


def _needed(form: Format) -> list[str]:
    """The fields that every row must have."""
    return ["text_a"] + ["text_b"] * bool(form.pair) + ["label"] * form.labelled


def _check_fields(path: Path, form: Format, columns: Columns) -> None:
    """UserError if none of the first rows of JSONL has a field that all need."""
    rows = list(_first_rows(path, form))
    seen = list(dict.fromkeys(name for row in rows for name in row))
    missing = [field for field in _needed(form) if form.column(field, seen) is None]
    if rows and missing:
        raise UserError(f"{path}:1: {lacks(seen, rows, missing, columns, form.names)}")


def _first_rows(path: Path, form: Format) -> Iterator[Row]:
    """The rows with which a table begins, without those that cannot be read."""
    for _, record in itertools.islice(form.records(_lines(path)), FIRST_ROWS):
        with contextlib.suppress(LineError):
            yield form.row(charset.without_mark(record))


def lacks(
    header: Sequence[str],
    rows: Sequence[Row],
    missing: Sequence[str],
    columns: Columns,
    names: Mapping[str, Sequence[str]],
) -> str:
    """The end of a sentence: which columns a table lacks, and the keys that would name them. names:
    of `Format`."""
    wanted = [names[field][0] for field in missing]
    seen = ", ".join(repr(column[:40]) for column in header[:12])
    guessed = _guess(header, rows, missing, names)
    words = [columns.spelled(field, column) for field, column in guessed.items()]
    remedy = "; rename its columns" + (f", or name them: {' '.join(words)}" if words else "")
    rest = f", only {seen}{remedy}" if header else "; write them in each line"
    return f"has no {' and no '.join(map(repr, wanted))}{rest}"


def _guess(
    header: Sequence[str],
    rows: Sequence[Row],
    missing: Sequence[str],
    names: Mapping[str, Sequence[str]],
) -> dict[str, str]:
    """The columns that probably hold these fields: of texts the longest, of labels the one with
    the fewest values. Empty where there are too few columns."""
    taken = {name for several in names.values() for name in several}
    free = [name for name in header if name and name not in taken]
    if len(free) < len(missing):
        return {}
    values = {name: [str(row.get(name) or "") for row in rows] for name in free}
    texts = [field for field in missing if field != "label"]
    longest = sorted(free, key=lambda name: -sum(map(len, values[name])))[: len(texts)]
    guessed = dict(zip(texts, [name for name in free if name in longest]))
    rest = [name for name in free if name not in longest]
    if "label" in missing:
        guessed["label"] = min(reversed(rest), key=lambda name: len(set(values[name])))
    return guessed


def _form_of_header(
    text: str, is_csv: bool, pair: bool | None, labelled: bool, columns: Columns
) -> Format:
    """That of a first line; auto is settled by it for .csv and for quoted names only."""
    names, separator = columns.names(), "\t"
    known = {name for several in names.values() for name in several}
    if is_csv:
        # Spreadsheets write semicolons where the comma is a decimal mark.
        fields = {mark: [n.strip(' "') for n in text.split(mark)] for mark in (",", ";", "\t")}
        separator = max(fields, key=lambda mark: (len(known & {*fields[mark]}), len(fields[mark])))
    written = [name.strip() for name in text.split("\t")]
    is_marked = any(name[1:-1] in known for name in written if '"' in name)
    is_marked |= all(QUOTED_FIELD.fullmatch(name) for name in written)
    quoting = columns.quoting
    quoted = quoting == "minimal" or (quoting == "auto" and (is_csv or is_marked))
    form = Format("tsv", None, pair, labelled, names, separator, quoted)
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


def _header_or_none(line: bytes, pair: bool, columns: Columns) -> Format | None:
    try:
        form = _form_of_header(decode(line), False, pair, False, columns)
    except LineError:
        return None
    header = form.columns or []
    column = form.column("text_a", header)
    if column is None or (pair and form.column("text_b", header) is None):
        return None
    is_text = header == [column] and column != "text_a" and columns.text_column is None
    return None if is_text else form


def check_texts(name: str, texts: Iterable[object]) -> None:
    """UserError at the first that is no text (`fault_of`), with its index in the list `name`."""
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise UserError(f"{name}[{index}] is not a text but {type(text).__name__}")
        fault = fault_of(text)
        if fault is not None:
            raise UserError(f"{name}[{index}] {fault}; leave it out")
