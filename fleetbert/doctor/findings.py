"""What a check found."""

from __future__ import annotations

from typing import Literal, NamedTuple

State = Literal["ok", "not here", "broken"]


class Finding(NamedTuple):
    """found: what was seen, in a line. remedy: what to do, where something can be done."""

    check: str
    state: State
    found: str
    remedy: str = ""


def ok(check: str, found: str) -> Finding:
    return Finding(check, "ok", found)


def not_here(check: str, found: str, remedy: str = "") -> Finding:
    return Finding(check, "not here", found, remedy)


def broken(check: str, found: str, remedy: str) -> Finding:
    return Finding(check, "broken", found, remedy)
