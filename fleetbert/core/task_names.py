"""The names of the tasks that there are, for the schemas of jobs and bundles, which know no more.

`fleetbert.tasks` has what they are, and adds those that are registered from outside.
"""

from __future__ import annotations

from typing import NamedTuple

from pydantic_core import PydanticCustomError


class Kind(NamedTuple):
    """pair: whether a question is two texts. label: how a table writes what is learned, see
    `data.written`. least_labels: that a bundle has. tells: what a bundle without labels tells of
    each text; "" if nothing. per_token: whether a text has logits for each of its tokens."""

    pair: bool = False
    label: str = "name"
    least_labels: int = 2
    tells: str = ""
    per_token: bool = False


KINDS: dict[str, Kind] = {
    "classification": Kind(),
    "pair_classification": Kind(pair=True),
    "regression": Kind(label="number", least_labels=0, tells="a number"),
    "pair_regression": Kind(pair=True, label="number", least_labels=0, tells="a number"),
    "ranking": Kind(pair=True, label="relevance", least_labels=0, tells="a number"),
    "embedding": Kind(label="number", least_labels=0, tells="a vector"),
    "multi_label_classification": Kind(label="names", least_labels=1),
    "token_classification": Kind(label="spans", per_token=True),
    "mlm": Kind(least_labels=0),
    "ctr": Kind(),
}


def check(name: str) -> str:
    """For pydantic: the name, if there is such a task."""
    if name not in KINDS:
        *names, last = map(repr, KINDS)
        raise PydanticCustomError("literal_error", f"Input should be {', '.join(names)} or {last}")
    return name
