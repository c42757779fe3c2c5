"""The members of an axis by name: the package's own, and those that are added from outside."""

from __future__ import annotations

import difflib
from typing import Dict, Mapping, TypeVar

from fleetbert.core.errors import UserError

Member = TypeVar("Member")


class Registry(Dict[str, Member]):
    """`key` is what users call the choice: that of a config or a manifest."""

    def __init__(self, key: str, members: Mapping[str, Member]):
        super().__init__(members)
        self._key = key

    def __missing__(self, name: str) -> Member:
        """UserError with the names that there are."""
        near = difflib.get_close_matches(name, self, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        known = ", ".join(self)
        raise UserError(f"{self._key}: {name!r} is not one of {known}{hint}")
