"""Tagged tokens in columns, as the tasks of CoNLL have them: a token, maybe others, and its tag on
a line, blank lines between texts.

Tags are of BIO, BIOES (IOBES), BILOU or BMES: O, or what a token is of a span, a hyphen and the
span's kind. Which of them, the tags themselves tell. Spans are read as seqeval's default does.
"""

from __future__ import annotations

import json
import re
from itertools import chain
from typing import Iterable, Iterator, NamedTuple, Sequence, Tuple

from fleetbert.data.written import LineError

DOCUMENT = b"-DOCSTART-"  # between the documents of CoNLL-2003
BEGIN, INSIDE, END = "BSU", "IMEL", "ESLU"  # of a span: its first token, later ones, its last
PREFIXES = frozenset(BEGIN + INSIDE)
SCHEMES = tuple(map(frozenset, ("BI", "BIES", "BILU", "BMES")))
# A character of a script without blanks between words: Chinese and Japanese with their punctuation
# and full-width forms, Thai, Lao, Myanmar, Khmer.
SPACELESS = (
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff00-\uffef\U00020000-\U0002ffff]"
)
_spaceless = re.compile(SPACELESS).match

HEADER = ("text", "text_a", "label", "spans")  # of tables that are none of tagged tokens

Span = Tuple[int, int, str]  # begin, end (characters or tokens), kind


class Joined(str):
    """A text that was put together of tokens. words: the characters where each begins and ends;
    they are what is tagged, whatever `words.find` sees in the text."""

    __slots__ = ("words",)
    words: list[tuple[int, int]]


class Tagged(NamedTuple):
    """A text of a table, and its spans by characters."""

    text: Joined
    spans: list[Span]


def records(lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """The lines of each text as one, with the number of the first; blank lines go with the text
    before them. Lines of DOCUMENT are by themselves."""
    held: list[bytes] = []
    first, ended = 1, False
    for number, line in lines:
        document = is_document(line)
        if held and (document or (ended and line.strip())):
            yield first, b"".join(held)
            held, ended = [], False
        if not held:
            first = number
        held.append(line)
        ended = ended or document or not line.strip()
    if held:
        yield first, b"".join(held)


def is_document(line: bytes) -> bool:
    """Whether a line, or the first of a record, says that a document begins."""
    return line.lstrip().startswith(DOCUMENT)


def parse(lines: Sequence[str], tagged: bool) -> Tagged:
    """The text of a record's lines; without `tagged` a line may be a token alone. LineError says
    which line is bad."""
    tokens: list[str] = []
    tags: list[str] = []
    at = 0
    try:
        for number, line in enumerate(lines):
            if line.strip():
                at = number
                token, tag = _columns(line, tagged)
                tokens.append(token)
                tags.append(_checked(tag, token))
        _check_scheme(tags)
    except LineError as error:
        raise LineError(str(error), at) from None
    text = join(tokens)
    spans = [
        (text.words[first][0], text.words[last - 1][1], kind)
        for first, last, kind in spans_of(tags)
    ]
    return Tagged(text, spans)


def join(tokens: list[str]) -> Joined:
    """A text of tokens: with a space between two, but beside characters of scripts that are written
    without, and between the characters of a text in such a script that comes character by
    character."""
    letters = all(len(token) == 1 for token in tokens) and any(map(_spaceless, tokens))
    parts: list[str] = []
    words: list[tuple[int, int]] = []
    length = 0
    for token in tokens:
        if parts and not (letters or _spaceless(parts[-1][-1]) or _spaceless(token)):
            parts.append(" ")
            length += 1
        words.append((length, length + len(token)))
        parts.append(token)
        length += len(token)
    text = Joined("".join(parts))
    text.words = words
    return text


def spans_of(tags: Iterable[str]) -> list[Span]:
    """The spans of tokens, (first, end, kind), that tags of any of the schemes say. As seqeval's
    `get_entities` has it, a tag that goes on where nothing of its kind is open begins one."""
    spans: list[Span] = []
    begin, kind = 0, ""
    for number, tag in enumerate(chain(tags, ["O"])):
        prefix, _, entity = tag.partition("-")
        goes_on = prefix in INSIDE and entity == kind
        if kind and not goes_on:
            spans.append((begin, number, kind))
        if not goes_on:
            begin, kind = number, entity
        if kind and prefix in END:
            spans.append((begin, number + 1, kind))
            kind = ""
    return spans


def dumps(spans: Iterable[Span]) -> str:
    """Spans as an example keeps them."""
    return json.dumps(sorted(spans), ensure_ascii=False)


def _columns(line: str, tagged: bool) -> tuple[str, str]:
    """Token and tag: the first column and the last."""
    columns = line.split("\t") if "\t" in line else line.rstrip(" ").split(" ")
    token, tag = columns[0].strip(" "), columns[-1].strip(" ")
    if not token:
        raise LineError(f"has the tag {tag[:40]!r} but no token before it")
    if "\0" in token:
        raise LineError("holds a NUL character")
    if len(columns) == 1 or not tag:
        if tagged:
            raise LineError(f"has the token {token[:40]!r} but no tag; write the tag O for none")
        return token, "O"
    return token, tag


def _checked(tag: str, token: str) -> str:
    prefix, _, kind = tag.partition("-")
    if tag in HEADER and token in HEADER:
        raise LineError(
            f"is a header ({token}, {tag}); here each line is a token and its tag: give texts with "
            "their spans as JSONL"
        )
    if tag != "O" and (prefix not in PREFIXES or not kind):
        raise LineError(
            f"has the tag {tag[:40]!r}, which is of no known scheme; write O, or B-, I- and the "
            "kind (BIO; BIOES, BILOU and BMES are read too)"
        )
    return tag


def _check_scheme(tags: list[str]) -> None:
    used = {tag[0] for tag in tags if tag != "O"}
    if not any(used <= scheme for scheme in SCHEMES):
        raise LineError(
            f"ends a text whose tags begin with {', '.join(sorted(used))}: that is none of BIO, "
            "BIOES, BILOU and BMES"
        )
