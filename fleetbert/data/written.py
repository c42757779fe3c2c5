"""How a table writes what is learned of a text: a name, a number, several names, spans, answers in
a context, relevance.

Each kind is a function of what stands there, of the text, and of the name of the column or field →
the text that an example keeps of it. A `tasks.Task` says which kind it reads (`label`).
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from typing import Callable


class LineError(ValueError):
    """A line that cannot be used; its text is the reason, without the place. line: of several that
    are one record, from 0."""

    def __init__(self, reason: str = "", line: int = 0):
        super().__init__(reason)
        self.line = line


def name(label: object, _: str = "", column: str = "label") -> str:
    """A text, or an integer or a boolean of JSON as text ("1", "true")."""
    if isinstance(label, (bool, int)):
        label = json.dumps(label)
    if label is not None and not isinstance(label, str):
        raise LineError(f"{column!r} is not a text or an integer but {type(label).__name__}")
    label = (label or "").strip()
    fault = fault_of(label) if label else None
    if fault is not None:
        raise LineError(f"{column!r} {fault}")
    return label


def number(label: object, _: str = "", column: str = "label") -> str:
    """A finite number, or a text that Python's float takes, as the shortest text that is it."""
    if isinstance(label, bool) or not isinstance(label, (int, float, str)):
        raise LineError(f"{column!r} is not a number but {type(label).__name__}")
    try:
        value = float(label)
    except (ValueError, OverflowError):
        shown = str(label).strip()[:40]
        raise LineError(f"{column!r} is {shown!r}, which is no number; write it like 3.8") from None
    if not math.isfinite(value) or abs(value) > LARGEST:
        raise LineError(f"{column!r} is {value}; it has to be a number from -1e30 to 1e30")
    return repr(value)


LARGEST = 1e30  # float32 holds it


def names(label: object, _: str = "", column: str = "label") -> str:
    """Names with commas between, or a list of JSON, which may be empty, as a JSON list: sorted,
    each once."""
    given = label if isinstance(label, list) else str(name(label, _, column)).split(",")
    names = sorted({name(word, _, column) for word in given})
    if len(names) < len(given) and all(
        type(word) in (bool, int) and word in (0, 1) for word in given
    ):
        raise LineError(
            f"{column!r} is {json.dumps(given)[:40]}, a 0 or 1 for each label; give the names of "
            "the labels that the text has"
        )
    if names and not names[0]:
        raise LineError(
            f"{column!r} has an empty name; put one comma between two labels (a text without "
            "labels has [] in .jsonl)"
        )
    return json.dumps(names, ensure_ascii=False)


def spans(label: object, text: str = "", column: str = "spans") -> str:
    """A list of JSON, of objects with start, end (characters; `text[start:end]` is the span) and
    kind (or label), as a JSON list of [start, end, kind], sorted."""
    if not isinstance(label, list):
        raise LineError(f"{column!r} is not a list but {type(label).__name__}")
    spans = sorted(_span(number, span, text, column) for number, span in enumerate(label))
    for former, later in zip(spans, spans[1:]):
        if later[0] < former[1]:
            raise LineError(
                f"{column!r} overlap: {_shown(former, text)} and {_shown(later, text)}; keep one"
            )
    return json.dumps(spans, ensure_ascii=False)


def _span(number: int, given: object, text: str, column: str) -> tuple[int, int, str]:
    if not isinstance(given, dict):
        raise LineError(f"{column!r}[{number}] is not an object with start, end and kind")
    start, end = (given.get(field) for field in ("start", "end"))
    kind = name(given.get("kind", given.get("label")))
    for field, value in (("start", start), ("end", end)):
        if value is not None and type(value) is not int:
            raise LineError(
                f"{column!r}[{number}] has the {field} {json.dumps(value)[:40]}; it has to be a "
                "whole number of characters"
            )
    if not kind or start is None or end is None:
        raise LineError(
            f"{column!r}[{number}] lacks start, end or kind; write "
            '{"start": 0, "end": 6, "kind": "place"}'
        )
    if not 0 <= start < end <= len(text):
        raise LineError(
            f"{column!r}[{number}] is from character {start} to {end}, which is no part of a "
            f"text of {len(text)} characters"
        )
    return start, end, kind


def relevance(label: object, text: str = "", column: str = "label") -> str:
    """1 of a document that answers its query, 0 of one that does not, as a JSON list of it and the
    query: documents are compared with those of the same."""
    given = label.strip() if isinstance(label, str) else label
    if given not in (0, 1, "0", "1", "0.0", "1.0"):
        raise LineError(
            f"{column!r} is {str(given)[:40]!r}; write 1 for a document that answers its query, 0 "
            "for one that does not"
        )
    return json.dumps([int(float(given)), text], ensure_ascii=False)


def answers(label: object, text: str = "", column: str = "answers") -> str:
    """The answers to a question in a context `text`, as a JSON list of the context and [start,
    answer] of each; none where the context does not answer it.

    An answer is a text or {"text", "answer_start"} (characters); there may be a list of them, or
    SQuAD's columns, {"text": [...], "answer_start": [...]}. One without a start stands where the
    context has it first. One with the start -1 is not in the context, but beside another that is:
    it counts in exact match and F1.
    """
    if isinstance(label, dict):
        texts, starts = (
            [v] if isinstance(v, (str, int)) else v
            for v in (label.get("text"), label.get("answer_start"))
        )
        starts = starts if isinstance(starts, list) else [None] * len(texts or ())
        if not isinstance(texts, list) or len(texts) != len(starts):
            raise LineError(f"{column!r} has to have as many 'text' as 'answer_start'")
        label = [{"text": t, "answer_start": s} for t, s in zip(texts, starts)]
    given = label if isinstance(label, list) else [label]
    answers = [_answer(number, answer, text, column) for number, answer in enumerate(given)]
    if answers and all(start < 0 for start, _ in answers):
        raise LineError(
            f"{column!r}: none stands in the context; correct them, or write [] for a question "
            "that the context does not answer"
        )
    return json.dumps([text, answers], ensure_ascii=False)


def _answer(number: int, given: object, text: str, column: str) -> tuple[int, str]:
    answer, start = given, None
    if isinstance(given, dict):
        answer, start = given.get("text"), given.get("answer_start")
    name = f"{column!r}[{number}]"
    if not isinstance(answer, str) or not answer.strip():
        raise LineError(
            f'{name} is no text; write {{"text": "Paris", "answer_start": 12}}, or {column!r} '
            "as [] for no answer"
        )
    if start is not None and type(start) is not int:
        raise LineError(
            f"{name} has the answer_start {json.dumps(start)[:40]}; it has to be a whole number of "
            "characters"
        )
    first = text.find(answer)
    if start == -1:
        return -1, answer
    if first < 0:
        is_near = _one_form(answer) in _one_form(text)
        reason = (
            "its context has with other line ends or in another Unicode form: copy it from there"
            if is_near
            else "is not in its context"
        )
        raise LineError(f"{name} is {answer[:40]!r}, which {reason}")
    if start is None or (text.startswith(answer, max(start, 0)) and start >= 0):
        return first if start is None else start, answer
    near = min(_places(answer, text), key=lambda place: abs(place - start))
    raise LineError(
        f"{name} is {answer[:40]!r}, but at its answer_start {start} the context has "
        f"{text[max(start, 0) :][: len(answer)][:40]!r}; the nearest is at {near}"
    )


def _one_form(text: str) -> str:
    """The same of texts that differ by line ends or by how their accents are written."""
    return unicodedata.normalize("NFC", text.replace("\r\n", "\n"))


def _places(answer: str, text: str) -> list[int]:
    """Where an answer begins in a text."""
    return [match.start() for match in re.finditer(f"(?={re.escape(answer)})", text)]


def _shown(span: tuple[int, int, str], text: str) -> str:
    start, end, kind = span
    return f"{text[start:end][:40]!r} ({kind}, {start} to {end})"


# Kinds that say characters of the text, of a pair of the second.
OF_CHARACTERS = ("spans", "answers")
KINDS: dict[str, Callable[[object, str, str], str]] = {
    "name": name,
    "number": number,
    "names": names,
    "spans": spans,
    "answers": answers,
    "relevance": relevance,
}


def read(kind: str, label: object, text: str, column: str = "label") -> str:
    """What an example keeps of a label; "" where there is none. column: where it stands."""
    if label is None or (isinstance(label, str) and not label.strip()):
        return ""
    return KINDS[kind](label, text, column)


def fault_of(text: str) -> str | None:
    """Why `text` is no text to train on or to answer, as the end of a sentence; None where it is
    one. NUL and half surrogate pairs are what JSON's escapes smuggle past a decoder."""
    if not text or text.isspace():
        return "is empty"
    if "\0" in text:
        return "holds a NUL character"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "holds half of a surrogate pair, which is no character"
    return None
