"""A record of a table and its example: quoted fields, JSON, tagged tokens, plain text.

A field may be quoted as RFC 4180 says: `"` around it, `""` for a quote in it. It may then hold
separators and line ends, and its record has the number of its first line. In a TSV table that is
not quoted, a quote is a character.
"""

from __future__ import annotations

import json
import re
from collections import deque
from typing import Collection, Dict, Iterable, Iterator, NamedTuple, Sequence, Tuple

from fleetbert.config import Columns
from fleetbert.core import charset
from fleetbert.data import conll, fields, squad, written
from fleetbert.data.written import LineError, fault_of

Row = Dict[str, object]  # of JSON or of a table, by column
# Bytes that a quoted record may have: a quote that is never closed costs no more memory.
LONGEST_RECORD = 16 << 20

QUOTED_FIELD = re.compile(r'"([^"]*(?:""[^"]*)*)"(?!")')
BLANK_AND_QUOTED = re.compile(r'\s+"[^"]*(?:""[^"]*)*"\s*')
BLANK = "has a blank between a quote and a separator; remove the blanks around separators"
SEPARATORS = {"\t": "tab", ",": "comma", ";": "semicolon"}

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


class Format(NamedTuple):
    """How the lines of a file become examples.

    kind: "tsv" (CSV too), "jsonl", "conll", "squad" (a file of `data.squad`), "fields" (rows of
        `data.fields`) or "plain" (the whole line is the text).
    columns: the header of a table with columns, else None.
    names: the names that each field of an example may have, see `config.Columns.names`.
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
    names: dict[str, list[str]] = Columns().names()
    separator: str = "\t"
    quoted: bool = False
    label: str = "name"
    apart: bool = False
    triplets: bool = False

    def records(self, lines: Numbered) -> Iterator[tuple[int, bytes]]:
        """What `parse` takes: lines, or several that are one record, as one."""
        if self.kind == "conll":
            return conll.records(lines)
        if self.kind == "squad":
            return squad.records(lines)
        return _joined(lines, self.separator.encode()) if self.quoted else iter(lines)

    def column(self, field: str, columns: Collection[str]) -> str | None:
        """Which of these columns is read as a field of an example; None if none is."""
        return next((name for name in self.names.get(field, ()) if name in columns), None)

    @property
    def is_whole(self) -> bool:
        """Whether records are not parts of the file, so that none can be read by itself."""
        return self.kind == "squad"

    @property
    def has_records(self) -> bool:
        """Whether `records` are more than lines."""
        return self.quoted or self.kind == "conll"

    def is_empty(self, record: bytes) -> bool:
        """Whether it holds no example, and is passed over."""
        return not record.strip() or (self.kind == "conll" and conll.is_document(record))

    def parse(self, line: bytes, number: int) -> Example:
        if self.kind == "plain":
            texts = decode(line).split("\t") if self.pair else [decode(line)]
            if len(texts) != 1 + bool(self.pair):
                raise LineError(
                    f"has {len(texts)} tab-separated columns where a pair needs two; write both "
                    "texts with one tab between them"
                )
            return _example(dict(zip(("text_a", "text_b"), texts)), number, self)
        if self.kind == "fields":
            row = fields.split(line.rstrip(b"\r\n"), self.labelled)
            reason = fields.problem(row, self.labelled)
            if reason:
                raise LineError(reason)
            text = b"\t".join(row[1:]).decode("utf-8", "surrogateescape")
            return Example(text, None, row[0].decode() or None, number)
        if self.kind == "conll":
            lines = _decode_lines(line)
            text, spans = conll.parse(lines, self.labelled)
            tagged = self.labelled or any(len(line.split()) > 1 for line in lines)
            return Example(text, None, conll.dumps(spans) if tagged else None, number)
        return _example(self.row(line), number, self)

    def row(self, record: bytes) -> Row:
        """The columns of a table, or the fields of JSONL."""
        if self.kind == "squad":
            return squad.row(record)
        if self.columns is None:
            return json_row(record)
        values = split_fields(decode(record), self)
        if len(values) != len(self.columns):
            raise LineError(_wrong_count(values, self))
        return dict(zip(self.columns, values))


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
        while is_open and size <= LONGEST_RECORD and (next_line := following()) is not None:
            more.append(next_line)
            size += len(next_line[1])
            is_open = _is_open(next_line[1], fields, True)
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


def split_fields(text: str, form: Format) -> list[str]:
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
            if BLANK_AND_QUOTED.fullmatch(values[-1]):
                raise LineError(BLANK)
        if at >= len(text):
            return values
        if not text.startswith(form.separator, at):
            if text[at:].partition(form.separator)[0].isspace():
                raise LineError(BLANK)
            raise LineError(
                "has text behind a closing quote; write a quote in a quoted field twice, or take "
                "quotes as characters (quoting: none)"
            )
        at += 1


def _wrong_count(values: Sequence[str], form: Format) -> str:
    name = SEPARATORS[form.separator]
    hint = ""
    if any(value.startswith('"') for value in values) and not form.quoted:
        hint = "; it begins with a quote: if the table is quoted, say so (quoting: minimal)"
    return (
        f"has {len(values)} {name}-separated columns where the header has "
        f"{len(form.columns or ())}{hint}"
    )


def json_row(line: bytes) -> Row:
    try:
        row = json.loads(decode(line))
    except LineError:
        raise
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", None) or "too deep or too large"
        raise LineError(f"is not valid JSON ({reason}); write one object a line") from None
    if not isinstance(row, dict):
        raise LineError("is not a JSON object; write one object a line (jq -c '.[]' does)")
    return row


def decode(line: bytes) -> str:
    line = line.rstrip(b"\r\n")
    problem = charset.problem(line)
    if problem is not None:
        raise LineError(problem)
    return line.decode("utf-8")


def _decode_lines(record: bytes) -> list[str]:
    lines = []
    for number, line in enumerate(record.split(b"\n")):
        try:
            lines.append(decode(line))
        except LineError as error:
            raise LineError(str(error), number) from None
    return lines


def _example(row: Row, number: int, form: Format) -> Example:
    """Check one row. LineError with its id, where it has one: questions often share a line."""
    try:
        return _checked(row, number, form)
    except LineError as error:
        place = "" if row.get("id") is None else f" (id {str(row['id'])[:40]})"
        raise LineError(f"{error}{place}") from None


def _checked(row: Row, number: int, form: Format) -> Example:
    """A form's `pair` None takes text_b where there is one."""
    columns = {field: form.column(field, row) or names[0] for field, names in form.names.items()}
    text_a = _text(row, columns["text_a"])
    text_b = None
    if form.pair or (form.pair is None and row.get(columns["text_b"])):
        text_b = _text(row, columns["text_b"])
    column, column_c = columns["label"], columns["text_c"]
    spanned = text_b if text_b and form.label in written.OF_CHARACTERS else text_a
    label = written.read(form.label, row.get(column), spanned, column) if form.label else ""
    takes_c = form.apart or form.triplets
    text_c = _text(row, column_c) if takes_c and row.get(column_c) else None
    if form.triplets and label and text_c:
        raise LineError(f"has a {column!r} and a {column_c!r}; give one of them")
    if form.labelled and not label and not form.apart and text_c is None:
        raise LineError(f"has no {column!r}" + (f" and no {column_c!r}" if form.triplets else ""))
    return Example(text_a, text_b, label or None, number, text_c)


def _text(row: Row, column: str) -> str:
    text = row.get(column)
    if text is None:
        raise LineError(f"has no {column!r}")
    if not isinstance(text, str):
        raise LineError(f"{column!r} is not a text but {type(text).__name__}")
    fault = fault_of(text)
    if fault is not None:
        raise LineError(f"{column!r} {fault}")
    return text
