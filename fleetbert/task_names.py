"""The names of the tasks that there are, for the schemas of jobs and bundles, which know no more.

`fleetbert.tasks` has what they are, and adds those that are registered from outside.
"""

from __future__ import annotations

from pydantic_core import PydanticCustomError

# Whether a question is two texts.
PAIRS: dict[str, bool] = {
    "classification": False,
    "pair_classification": True,
    "mlm": False,
    "ctr": False,
}


def check(name: str) -> str:
    """For pydantic: the name, if there is such a task."""
    if name not in PAIRS:
        *names, last = map(repr, PAIRS)
        raise PydanticCustomError("literal_error", f"Input should be {', '.join(names)} or {last}")
    return name
