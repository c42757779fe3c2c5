"""The names of the tasks that there are, for the schemas of jobs and bundles, which know no more.

`fleetbert.tasks` has what they are, and adds those that are registered from outside.
"""

from __future__ import annotations

from pydantic_core import PydanticCustomError

NAMES: list[str] = ["classification", "pair_classification", "mlm", "ctr"]


def add(name: str) -> None:
    if name not in NAMES:
        NAMES.append(name)


def check(name: str) -> str:
    """For pydantic: the name, if there is such a task."""
    if name not in NAMES:
        known = ", ".join(map(repr, NAMES[:-1]))
        raise PydanticCustomError("literal_error", f"Input should be {known} or {NAMES[-1]!r}")
    return name
