"""The one reader of text files that a user gives, and the one sentence where they are not UTF-8."""

from __future__ import annotations

import codecs
import json
import os
import re
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any, Callable

from fleetbert.core.errors import UserError

# By iconv's names, what people call them.
TITLES = {
    "utf-16": "UTF-16",
    "utf-16le": "UTF-16 without a byte order mark",
    "utf-16be": "UTF-16 without a byte order mark",
    "utf-32": "UTF-32",
    "gbk": "GBK",
    "latin1": "Latin-1",
    "cp1252": "Windows-1252",
}
MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # begins as UTF-16's does
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
HIGH = re.compile(rb"[\x80-\xff]+")


def guess(data: bytes) -> str | None:
    """Of TITLES, what bytes that are no text in UTF-8 probably are; None: no text at all."""
    for mark, encoding in MARKS:
        if data.startswith(mark):
            return encoding
    if b"\0" in data:
        # Of UTF-16 every other byte is NUL where the text is ASCII, as tabs and labels mostly are.
        even, odd = data[::2].count(0), data[1::2].count(0)
        if max(even, odd) * 8 < len(data) or min(even, odd) * 4 > max(even, odd):
            return None
        return "utf-16le" if odd > even else "utf-16be"
    runs = HIGH.findall(data)
    alone = sum(len(run) == 1 for run in runs)
    # Latin-1 has control characters from 0x80 to 0x9f, where Windows-1252 has quotes and the euro.
    western = "cp1252" if re.search(rb"[\x80-\x9f]", data) and _is(data, "cp1252") else "latin1"
    return western if alone * 2 > len(runs) or not _is(data.rstrip(b"\r\n"), "gbk") else "gbk"


def _is(data: bytes, encoding: str) -> bool:
    try:
        data.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def problem(data: bytes, sample: bytes | None = None) -> str | None:
    """Why `data` is no text, as the end of a sentence, or None. The guess is of `sample`, if that
    tells more than `data`."""
    try:
        text = data.decode("utf-8")
        if "\0" not in text:
            return None
        problem = "holds a NUL character"
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 at byte {error.start + 1}"
    iconv = guess(data if sample is None else sample)
    if iconv is None:
        return f"{problem}; is the file text?"
    return (
        f"{problem}, and looks like {TITLES[iconv]}; convert the file: `iconv -f {iconv} -t utf-8`"
    )


def utf8_word(word: str) -> str:
    """A word of the command line as text, for `type` of an argument of argparse: bytes of which
    this locale can make no letters are UTF-8. ArgumentTypeError where they are not."""
    try:
        return os.fsencode(word).decode("utf-8") if re.search("[\udc80-\udcff]", word) else word
    except UnicodeDecodeError:
        raise ArgumentTypeError(f"{word!a} is not UTF-8") from None


def without_mark(data: bytes) -> bytes:
    """Without the byte order mark of UTF-8."""
    return data[3:] if data.startswith(codecs.BOM_UTF8) else data


def read_text(path: str | os.PathLike[str], what: str) -> str:
    """All of a text file, without a byte order mark; what: e.g. "vocabulary", for the UserError of
    a file that cannot be read or is no text, which names the line."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such {what} file") from error
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{str(path)!r}: the {what} cannot be read ({reason})") from error
    return decode(data, lambda line: f"{path}:{line}: the {what}")


def read_json(path: str | os.PathLike[str], what: str) -> dict[str, Any]:
    """The object in a JSON file; UserError as of `read_text`, and where it holds no object."""
    try:
        fields = json.loads(read_text(path, what))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: the {what} is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise UserError(f"{path}: the {what} holds no JSON object")
    return fields


def decode(data: bytes, where: Callable[[int], str]) -> str:
    """A whole file's text; the UserError begins with `where` of the line."""
    data = without_mark(data)
    if problem(data) is None:
        return data.decode("utf-8")
    lines = data.split(b"\n")
    number, reason = next(
        (n, reason) for n, line in enumerate(lines, 1) if (reason := problem(line, data))
    )
    raise UserError(f"{where(number)} {reason}")
