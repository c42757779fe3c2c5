"""A model of the repository: which of its versions are wanted, held, refused, and why."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import Iterable, NamedTuple

from fleetbert.deploy.inference.messages import State, Version, printable
from fleetbert.deploy.inference.repository import index
from fleetbert.deploy.inference.repository.loading import LoadedVersion
from fleetbert.deploy.inference.settings import Policy


class Refusal(NamedTuple):
    """Why a version is not served, as it was found; `due`: when it is tried again."""

    folder: index.VersionFolder
    reason: str
    due: float = math.inf
    pause: float = 0.0


@dataclass
class Model:
    name: str
    policy: Policy
    required: bool  # its absence makes the server not ready
    unloaded: bool = False  # by request, until it is loaded by request
    missed: bool = False  # nothing on disk can take the place of what is served
    on_disk: dict[int, index.VersionFolder] = field(default_factory=dict)
    held: dict[int, LoadedVersion] = field(default_factory=dict)
    loading: set[int] = field(default_factory=set)
    refused: dict[int, Refusal] = field(default_factory=dict)
    draining: list[LoadedVersion] = field(default_factory=list)

    def wanted(self) -> list[int]:
        """The versions that are to answer, newest first: by policy, of those that are whole and
        were not refused, and those that have an alias."""
        usable = [
            number
            for number, folder in self.on_disk.items()
            if number in self.held or (folder.bundle is not None and not self.is_refused(number))
        ]
        return select(self.policy, usable)

    def is_refused(self, number: int) -> bool:
        """Whether these very files were refused, and are not to be tried again yet."""
        refusal = self.refused.get(number)
        return (
            refusal is not None
            and refusal.folder == self.on_disk[number]
            and time.monotonic() < refusal.due
        )

    def state(self, number: int) -> tuple[State, str]:
        """State of a version on disk that does not answer, and the reason."""
        folder = self.on_disk[number]
        if number in self.loading:
            return State.LOADING, "it is being loaded"
        if folder.bundle is None:
            return State.UNAVAILABLE, printable(folder.reason)
        if self.is_refused(number):
            return State.UNAVAILABLE, printable(self.refused[number].reason)
        if self.unloaded:
            return State.UNLOADED, "it was unloaded by request"
        wanted = self.wanted()
        if number in wanted:
            return State.QUEUED, "other models are loaded first"
        if wanted and number < wanted[0]:
            return State.REPLACED, f"version {wanted[0]} replaced it"
        return State.UNAVAILABLE, "the policy `versions` of its model does not choose it"


def select(policy: Policy, numbers: Iterable[int]) -> list[int]:
    """Which of these versions a policy wants, newest first; those with an alias always."""
    usable = sorted(numbers, reverse=True)
    rule = policy.versions
    if rule == "all":
        chosen = set(usable)
    elif isinstance(rule, dict):
        chosen = set(usable[: rule["latest"]])
    else:
        chosen = set(rule)
    chosen |= set(policy.aliases.values())
    return [number for number in usable if number in chosen]


def versions_of(model: Model) -> list[Version]:
    """All of a model's versions, in the order of their numbers."""
    known = {number: held.version for number, held in model.held.items()}
    for held in model.draining:
        draining = replace(held.version, state=State.DRAINING)
        known.setdefault(int(draining.version), draining)
    versions = list(known.values())
    for number in set(model.on_disk) - set(known):
        state, reason = model.state(number)
        versions.append(Version(model.name, str(number), state, reason))
    return sorted(versions, key=lambda version: int(version.version))
