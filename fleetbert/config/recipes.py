"""The YAML files that come with fleetbert: those of configs/, by their names."""

from __future__ import annotations

import difflib
import itertools
import re
from pathlib import Path

import fleetbert
from fleetbert.core.errors import UserError

# setup.py installs configs/ as fleetbert/recipes; in a checkout it stands beside fleetbert/.
_PACKAGE = Path(fleetbert.__file__).parent
_INSTALLED, _CHECKOUT = _PACKAGE / "recipes", _PACKAGE.parent / "configs"


def all_paths() -> dict[str, Path]:
    """The file of each recipe by name, `sst2` or `quantize/static`, in order."""
    folder = _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT
    names = {
        file.relative_to(folder).with_suffix("").as_posix(): file for file in folder.rglob("*.yaml")
    }
    return dict(sorted(names.items(), key=lambda item: (item[0].count("/"), item[0])))


def path(name: str) -> Path:
    """The file of a recipe, whose folder may be left out of the name: `static` is
    `quantize/static`. UserError where there is none of this name."""
    known = all_paths()
    by_last_part = {whole.rpartition("/")[2]: file for whole, file in known.items()}
    file = known.get(name) or by_last_part.get(name)
    if file is None:
        near = difflib.get_close_matches(name, [*known, *by_last_part], 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"recipe {name}: unknown; {hint}`fleetbert recipes` lists them")
    return file


def named(file: str) -> str | None:
    """The recipe that a path such as configs/quantize/static.yaml means; None: no recipe."""
    match = re.search(r"configs/(.+)\.yaml$", file)
    return match[1] if match and match[1] in all_paths() else None


def summary(file: Path) -> str:
    """The first sentence of the comment that a recipe begins with."""
    lines = file.read_text(encoding="utf-8").splitlines()
    comment = itertools.takewhile(lambda line: line.startswith("# "), lines)
    text = " ".join(line[2:] for line in comment)
    return re.split(r"(?<=[.?])\s", text)[0].rstrip(".")
