"""Reading texts and labels from files and streams, line by line.

A table is TSV or CSV with a header or JSONL, one example a line, in UTF-8 (with or without a BOM).
Columns or fields are `text_a`, `text_b` (pairs only) and `label`; others are ignored, and JSONL
may say `text` for `text_a`. A line ends with a line feed, before which a carriage return may stand,
and with nothing else. A table of spans is JSONL with `spans`, or tagged tokens in columns
(`conll`), where a text has several lines.
Lines that hold nothing but white space are passed over, except where an answer is owed for every
line (`iter_lines`).

A field may be quoted as RFC 4180 says: `"` around it, `""` for a quote in it. It may then hold
separators and line ends, and its record has the number of its first line. In a TSV table that is
not quoted, a quote is a character.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections import deque
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Dict, Iterable, Iterator, Literal, NamedTuple, Sequence, Tuple

from fleetbert.core import charset
from fleetbert.core.errors import UserError
from fleetbert.data import conll, written
from fleetbert.data.written import LineError, fault_of

log = logging.getLogger(__name__)

Row = Dict[str, object]  # of JSON or of a table, by column
JSON_SUFFIXES = (".jsonl", ".json")
COLUMN_SUFFIXES = (".tsv", ".csv")  # files with a header
# Columns of tagged tokens; read as such wherever texts are wanted.
TAG_SUFFIXES = (".conll", ".bio", ".iob", ".bioes", ".bmes", ".bilou")
# Bytes that a quoted record may have: a quote that is never closed costs no more memory.
LONGEST_RECORD = 16 << 20

QUOTED_FIELD = re.compile(r'"([^"]*(?:""[^"]*)*)"(?!")')

Quoting = Literal["auto", "none", "minimal"]
Numbered = Iterable[Tuple[int, bytes]]  # lines with their ends, and their numbers from 1


class Example(NamedTuple):
    """One text or pair of texts, with the number of its line (from 1) for error messages."""

    text_a: str
    text_b: str | None
    label: str | None
    line: int
    text_c: str | None = None

    def apart(self) -> list[Example]:
        """Each of its texts as an example, with its label and line."""
        texts = (self.text_a, self.text_b, self.text_c)
        return [Example(text, None, self.label, self.line) for text in texts if text is not None]

    def documents(self) -> list[Example]:
        """With a `text_c` two pairs: of the query and its document, and of it and the other one."""
        if self.text_c is None:
            return [self]
        pairs = ((self.text_b, 1), (self.text_c, 0))
        return [
            Example(self.text_a, text, written.relevance(label, self.text_a), self.line)
            for text, label in pairs
        ]


class Table(NamedTuple):
    """The examples of a file, and the lines that were skipped: (line number, reason)."""

    examples: list[Example]
    skipped: list[tuple[int, str]]


class Format(NamedTuple):
    """How the lines of a file become examples.

    kind: "tsv" (CSV too), "jsonl", "conll" or "plain" (the whole line is the text).
    columns: the header of a table with columns, else None.
    pair: whether a `text_b` is needed; None takes it where there is one.
    labelled: whether a label is needed.
    separator: what stands between two columns.
    quoted: whether fields may be quoted.
    label: how a label is written, of `written.KINDS`; "": it is not read.
    apart: whether each text of a line is an example of its own, up to three (`text_c`); labels are
        taken where there are some.
    triplets: whether a line may have a `text_c` instead of a label (`Example.documents`).
    """

    kind: str
    columns: list[str] | None
    pair: bool | None
    labelled: bool
    separator: str = "\t"
    quoted: bool = False
    label: str = "name"
    apart: bool = False
    triplets: bool = False

    def records(self, lines: Numbered) -> Iterator[tuple[int, bytes]]:
        """What `parse` takes: lines, or several that are one record, as one."""
        if self.kind == "conll":
            return conll.records(lines)
        return _joined(lines, self.separator.encode()) if self.quoted else iter(lines)

    @property
    def has_records(self) -> bool:
        """Whether `records` are more than lines."""
        return self.quoted or self.kind == "conll"

    def is_empty(self, record: bytes) -> bool:
        """Whether it holds no example, and is passed over."""
        return not record.strip() or (self.kind == "conll" and conll.is_document(record))

    def parse(self, line: bytes, number: int) -> Example:
        if self.kind == "plain":
            texts = _decode(line).split("\t") if self.pair else [_decode(line)]
            if len(texts) != 1 + bool(self.pair):
                raise LineError(f"has {len(texts)} tab-separated columns where a pair needs two")
            return _example(dict(zip(("text_a", "text_b"), texts)), number, self)
        if self.kind == "conll":
            lines = _decode_lines(line)
            text, spans = conll.parse(lines, self.labelled)
            tagged = self.labelled or any(len(one.split()) > 1 for one in lines)
            return Example(text, None, conll.dumps(spans) if tagged else None, number)
        if self.columns is None:
            return _example(_json_row(line), number, self)
        values = _fields(_decode(line), self)
        if len(values) != len(self.columns):
            raise LineError(_wrong_count(values, self))
        return _example(dict(zip(self.columns, values)), number, self)


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
            columns = [name for name, value in _json_row(file.readline()).items() if value]
    if "text_b" in columns:
        log.warning(
            f"{path}: its text_b is not read, as the task is of single texts; those of pairs are "
            "pair_classification, pair_regression and ranking"
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
        text = _decode(charset.without_mark(line))
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
                f"name the {NAMES[form.separator]}-separated columns {', '.join(needed)}"
            )
    for column in ("text_a", "text_b", "label"):
        if columns.count(column) > 1:
            raise UserError(f"{path}:1: the header names {column!r} twice; keep one of them")
    return form


NAMES = {"\t": "tab", ",": "comma", ";": "semicolon"}


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
    return form._replace(columns=[name.strip() for name in _fields(text, form)])


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
        plain = [_fields(line.rstrip("\r"), raw) for line in text.split("\n")]
        marked = [value for value in plain[0] if '"' in value]
        try:
            values = _fields(text, quoted)
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
        form = _form_of_header(_decode(line), False, pair, False, quoting)
    except LineError:
        return None
    columns = form.columns or []
    return form if "text_a" in columns and (not pair or "text_b" in columns) else None


def _joined(lines: Numbered, separator: bytes) -> Iterator[tuple[int, bytes]]:
    """Records of lines. One that is not closed is its first line alone; the next begins after it,
    so that a stray quote costs no other line."""
    lines, fields = iter(lines), re.compile(rb'(?:\A|%s)"[^"]*(?:""[^"]*)*("?)' % separator)
    again: deque[tuple[int, bytes]] = deque()  # lines that come next

    def following() -> tuple[int, bytes] | None:
        return again.popleft() if again else next(lines, None)

    while (head := following()) is not None:
        number, line = head
        more: list[tuple[int, bytes]] = []
        size, is_open = len(line), _is_open(line, fields, False)
        while is_open and size <= LONGEST_RECORD and (one := following()) is not None:
            more.append(one)
            size += len(one[1])
            is_open = _is_open(one[1], fields, True)
        if is_open:
            again.extendleft(reversed(more))
            more = []
        yield number, line + b"".join(text for _, text in more)


def _is_open(line: bytes, fields: re.Pattern[bytes], is_open: bool) -> bool:
    """Whether a quoted field goes on behind this line, which begins in one if `is_open`; fields:
    matches quoted fields, with their closing quote as a group."""
    if b'"' not in line:
        return is_open
    ends = fields.findall(b'"' + line if is_open else line)
    return bool(ends) and not ends[-1]


def _fields(text: str, form: Format) -> list[str]:
    """The fields of a record without its line end."""
    if not form.quoted or '"' not in text:
        return text.split(form.separator)
    values, at = [], 0
    while True:
        if text.startswith('"', at):
            field = QUOTED_FIELD.match(text, at)
            if field is None:
                raise LineError(
                    "opens a quote that is not closed; close it, or take quotes as characters "
                    "(quoting: none)"
                )
            values.append(field[1].replace('""', '"'))
            at = field.end()
        else:
            end = text.find(form.separator, at)
            values.append(text[at : end if end >= 0 else None])
            at = end if end >= 0 else len(text)
        if at >= len(text):
            return values
        if not text.startswith(form.separator, at):
            raise LineError(
                "has text behind a closing quote; write a quote in a quoted field twice, or take "
                "quotes as characters (quoting: none)"
            )
        at += 1


def _wrong_count(values: Sequence[str], form: Format) -> str:
    name = NAMES[form.separator]
    hint = ""
    if any(value.startswith('"') for value in values) and not form.quoted:
        hint = "; it begins with a quote: if the table is quoted, say so (quoting: minimal)"
    return (
        f"has {len(values)} {name}-separated columns where the header has "
        f"{len(form.columns or ())}{hint}"
    )


def _json_row(line: bytes) -> Row:
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
    return row


def _decode(line: bytes) -> str:
    line = line.rstrip(b"\r\n")
    said = charset.problem(line)
    if said is not None:
        raise LineError(said)
    return line.decode("utf-8")


def _decode_lines(record: bytes) -> list[str]:
    lines = []
    for number, line in enumerate(record.split(b"\n")):
        try:
            lines.append(_decode(line))
        except LineError as error:
            raise LineError(str(error), number) from None
    return lines


def _example(row: Row, number: int, form: Format) -> Example:
    """Check one row; a form's `pair` None takes text_b where there is one."""
    text_a = _text(row, "text_a")
    text_b = None
    if form.pair or (form.pair is None and row.get("text_b")):
        text_b = _text(row, "text_b")
    field = "spans" if form.label == "spans" and "label" not in row else "label"
    label = written.read(form.label, row.get(field), text_a) if form.label else ""
    takes_c = form.apart or form.triplets
    text_c = _text(row, "text_c") if takes_c and row.get("text_c") else None
    if form.triplets and label and text_c:
        raise LineError("has a label and a 'text_c'; give one of them")
    if form.labelled and not label and not form.apart and text_c is None:
        raise LineError(f"has no {field!r}" + (" and no 'text_c'" if form.triplets else ""))
    return Example(text_a, text_b, label or None, number, text_c)


def _text(row: Row, field: str) -> str:
    text = row.get(field)
    if text is None:
        raise LineError(f"has no {field!r}")
    if not isinstance(text, str):
        raise LineError(f"{field!r} is not a text but {type(text).__name__}")
    fault = fault_of(text)
    if fault is not None:
        raise LineError(f"{field!r} {fault}")
    return text


def check_texts(name: str, texts: Iterable[object]) -> None:
    """UserError at the first that is no text (`fault_of`), with its index in the list `name`."""
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise UserError(f"{name}[{index}] is not a text but {type(text).__name__}")
        fault = fault_of(text)
        if fault is not None:
            raise UserError(f"{name}[{index}] {fault}; leave it out")
