"""What a check found."""

from __future__ import annotations

from typing import Literal, NamedTuple

State = Literal["ok", "not here", "skipped", "broken"]


class Finding(NamedTuple):
    """observed: what was seen, in a line. remedy: what to do, where something can be done."""

    check: str
    state: State
    observed: str
    remedy: str = ""


def ok(check: str, text: str) -> Finding:
    return Finding(check, "ok", text)


def not_here(check: str, text: str, remedy: str = "") -> Finding:
    return Finding(check, "not here", text, remedy)


def skipped(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, "skipped", text, remedy)


def broken(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, "broken", text, remedy)
