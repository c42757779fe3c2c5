"""Files of questions as SQuAD 1.1 and 2.0, CMRC 2018 and DRCD have them: one JSON object with
articles, their paragraphs (`context`) and the questions of each (`qas`)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, cast

from fleetbert.core import charset
from fleetbert.data.written import LineError

# The fields of its questions, by those of an example.
NAMES = {"text_a": ["question"], "text_b": ["context"], "label": ["answers"], "text_c": ["text_c"]}
# How such a file begins: a line of JSONL has no list `data` after plain values.
VALUE = rb'"[^"]*"\s*:\s*(?:"[^"]*"|[\w.+-]+)\s*,\s*'
BEGINS = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*(?:%s)*"data"\s*:\s*\[' % VALUE)
FIRST_BYTES = 1 << 12
CUT_SHORT = "ends before its JSON object does; copy or download the whole file again"


def is_squad(path: str | Path) -> bool:
    """Whether the file at `path` is of this layout; False where it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return BEGINS.match(file.read(FIRST_BYTES)) is not None
    except (OSError, ValueError):
        return False


def records(lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Each question as a line of JSONL (id, question, context, answers), with the number of the
    line that its id stands in. A file without questions, or that is not JSON, comes as a whole."""
    content = charset.without_mark(b"".join(line for _, line in lines))
    try:
        text = content.decode("utf-8")
        questions = list(_questions(json.loads(text)))
    except (ValueError, RecursionError):
        yield 1, content
        return
    line, place = 1, 0
    for question in questions:
        written = json.dumps(question.get("id"), ensure_ascii=False)
        at = text.find(written, place)
        if at >= 0:
            line, place = line + text.count("\n", place, at), at
        yield line, json.dumps(question).encode()
    if not questions:
        yield 1, content


def row(record: bytes) -> dict[str, object]:
    """The fields of what `records` gives; LineError says what is wrong with a file that comes as a
    whole."""
    try:
        fields = cast("Dict[str, object]", json.loads(record.decode("utf-8")))
    except UnicodeDecodeError as error:
        if error.end == len(record) and error.reason == "unexpected end of data":
            raise LineError(CUT_SHORT, record.count(b"\n")) from None
        line = record[: error.start].count(b"\n")
        raise LineError(str(charset.problem(record.split(b"\n")[line], record)), line) from None
    except json.JSONDecodeError as error:
        is_short = error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated")
        end = len(error.doc) if is_short else error.pos
        reason = CUT_SHORT if is_short else f"is not valid JSON ({error.msg})"
        raise LineError(reason, error.doc[:end].count("\n")) from None
    except RecursionError:
        raise LineError("is not valid JSON (too deep)") from None
    if "context" not in fields:
        _ = list(_questions(fields))  # LineError, if a part of it is wrong
        raise LineError(
            "has no questions; SQuAD's layout has them in 'data', 'paragraphs' and 'qas', other "
            "files have one object with question, context and answers a line"
        )
    return fields


def _questions(file: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each with its context. LineError where a part of the file is not of this layout."""
    for paragraph in _parts(_parts([file], "data"), "paragraphs"):
        for question in _parts([paragraph], "qas"):
            yield {**question, "context": paragraph.get("context")}


def _parts(objects: Iterable[dict[str, Any]], name: str) -> Iterator[dict[str, Any]]:
    """The objects in the lists that `objects` have under a name."""
    for row in objects:
        inner = row.get(name, [])
        for part in inner if isinstance(inner, list) else [None]:
            if not isinstance(part, dict):
                shown = json.dumps(inner if part is None else part)[:40]
                raise LineError(f"{name!r} has to be a list of objects; {shown} is none")
            yield part
