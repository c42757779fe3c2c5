"""Files of questions as SQuAD 1.1 and 2.0, CMRC 2018 and DRCD have them: one JSON object with
articles, their paragraphs (`context`) and the questions of each (`qas`)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Iterable, Iterator

from fleetbert.core import charset

# The fields of its questions, by those of an example.
NAMES = {"text_a": ["question"], "text_b": ["context"], "label": ["answers"], "text_c": ["text_c"]}
# How such a file begins: a line of JSONL has no list `data` after plain values.
VALUE = rb'"[^"]*"\s*:\s*(?:"[^"]*"|[\w.+-]+)\s*,\s*'
BEGINS = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*(?:%s)*"data"\s*:\s*\[' % VALUE)
FIRST_BYTES = 1 << 12


def is_squad(path: str | Path) -> bool:
    """Whether the file at `path` is of this layout; False where it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return BEGINS.match(file.read(FIRST_BYTES)) is not None
    except (OSError, ValueError):
        return False


def records(lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Each question as a line of JSONL (id, question, context, answers), with the number of the
    line that its id stands in. A file that is not JSON comes as the line that is wrong."""
    content = charset.without_mark(b"".join(line for _, line in lines))
    try:
        text = content.decode("utf-8")
        file = json.loads(text)
    except UnicodeDecodeError as error:
        yield content[: error.start].count(b"\n") + 1, content[error.start :].split(b"\n")[0]
        return
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        yield line, text.split("\n")[line - 1].encode()
        return
    line, place = 1, 0
    for paragraph in _parts(_parts([file], "data"), "paragraphs"):
        for question in _parts([paragraph], "qas"):
            written = json.dumps(question.get("id"), ensure_ascii=False)
            at = text.find(written, place)
            if at >= 0:
                line, place = line + text.count("\n", place, at), at
            row = {**question, "context": paragraph.get("context")}
            yield line, json.dumps(row).encode()


def _parts(objects: Iterable[dict[str, Any]], name: str) -> Iterator[dict[str, Any]]:
    """The objects in the lists that `objects` have under a name."""
    for row in objects:
        inner = row.get(name)
        if isinstance(inner, list):
            yield from (part for part in inner if isinstance(part, dict))
