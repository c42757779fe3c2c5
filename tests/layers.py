"""Processes that find only the packages of `pip install 'fleetbert[EXTRAS]'`, of all that are
installed here."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# Runs before everything else in a process whose PYTHONPATH has its folder, and in its children.
SITECUSTOMIZE = """\
import sys

REFUSED = frozenset({names})


class Refusing:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in REFUSED:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Refusing)
"""


def packages(*extras: str) -> set[str]:
    """The names of the packages that pip installs, of those that are here."""
    names: set[str] = set()
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [("fleetbert", frozenset(extras))]
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        try:
            lines = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # `make venv` leaves out what another asks for and imports nowhere
        names.add(name)
        for need in map(Requirement, lines):
            choices = [{"extra": extra} for extra in wanted | {""}]
            if need.marker is None or any(map(need.marker.evaluate, choices)):
                waiting.append((canonicalize_name(need.name), frozenset(need.extras)))
    return names


def modules(names: set[str]) -> set[str]:
    """The first names of what packages have to be imported."""
    files = (file for name in names for file in metadata.files(name) or ())
    tops = {file.parts[0].partition(".")[0] for file in files}
    return {name for name in tops if name.isidentifier()}


def environ(folder: Path, *extras: str) -> dict[str, str]:
    """Variables of a process that has the packages of these extras. Writes sitecustomize.py."""
    allowed = packages(*extras)
    others = {canonicalize_name(each.metadata["Name"]) for each in metadata.distributions()}
    names = sorted(modules(others - allowed) - modules(allowed))
    folder.mkdir(parents=True, exist_ok=True)
    source = SITECUSTOMIZE.format(names=json.dumps(names))
    (folder / "sitecustomize.py").write_text(source, encoding="utf-8")
    return {"PYTHONPATH": str(folder)}
