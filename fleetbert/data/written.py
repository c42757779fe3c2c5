"""How a table writes what is learned of a text: a name, a number, several names.

Each kind is a function of what stands in the column or field `label` → the text that an example
keeps of it, "" where there is nothing. A `tasks.Task` says which kind it reads (`label`).
"""

from __future__ import annotations

import json
import math
from typing import Callable


class LineError(ValueError):
    """A line that cannot be used; its text is the reason, without the place."""


def name(label: object) -> str:
    """A text, or an integer or a boolean of JSON as text ("1", "true")."""
    if isinstance(label, (bool, int)):
        label = json.dumps(label)
    if label is not None and not isinstance(label, str):
        raise LineError(f"'label' is not a text or an integer but {type(label).__name__}")
    label = (label or "").strip()
    fault = fault_of(label) if label else None
    if fault is not None:
        raise LineError(f"'label' {fault}")
    return label


def number(label: object) -> str:
    """A finite number, or a text that Python's float takes, as the shortest text that is it."""
    if label is None or (isinstance(label, str) and not label.strip()):
        return ""
    if isinstance(label, bool) or not isinstance(label, (int, float, str)):
        raise LineError(f"'label' is not a number but {type(label).__name__}")
    try:
        value = float(label)
    except (ValueError, OverflowError):
        shown = str(label).strip()[:40]
        raise LineError(f"'label' is {shown!r}, which is no number; write it like 3.8") from None
    if not math.isfinite(value) or abs(value) > LARGEST:
        raise LineError(f"'label' is {value}; it has to be a number from -1e30 to 1e30")
    return repr(value)


LARGEST = 1e30  # float32 holds it


def names(label: object) -> str:
    """Names with commas between, or a list of JSON, as a JSON list: sorted, each once."""
    if label is None or (isinstance(label, str) and not label.strip()):
        return ""
    given = label if isinstance(label, list) else str(name(label)).split(",")
    found = sorted({name(one) for one in given})
    if not found or not found[0]:
        raise LineError(
            "'label' is an empty list; name the text's labels, or one for texts that have none"
            if not found
            else "'label' has an empty name; put one comma between two labels"
        )
    return json.dumps(found, ensure_ascii=False)


KINDS: dict[str, Callable[[object], str]] = {"name": name, "number": number, "names": names}


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
