"""The members of an axis by name: the package's own, and those that are added from outside."""

from __future__ import annotations

import difflib
from typing import Generic, KeysView, Mapping, TypeVar, ValuesView

from fleetbert.errors import UserError

Member = TypeVar("Member")


class Registry(Generic[Member]):
    """`key` is what users call the choice: that of a config or a manifest."""

    def __init__(self, key: str, members: Mapping[str, Member]):
        self._key = key
        self._members: dict[str, Member] = dict(members)

    def add(self, name: str, member: Member) -> None:
        """Add a member, or replace the one of that name."""
        self._members[name] = member

    def get(self, name: str) -> Member:
        """The member of that name; UserError with the names that there are."""
        try:
            return self._members[name]
        except KeyError:
            near = difflib.get_close_matches(name, self._members, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            known = ", ".join(self._members)
            raise UserError(f"{self._key}: {name!r} is not one of {known}{hint}") from None

    def names(self) -> KeysView[str]:
        return self._members.keys()

    def values(self) -> ValuesView[Member]:
        return self._members.values()
