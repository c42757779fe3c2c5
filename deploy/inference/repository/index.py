"""What lies in the repository's folder: MODEL/VERSION/ or MODEL/VERSION/bundle/.

Names come from listing the folder, never from a request.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Mapping, Tuple

from fleetbert import bundle as bundles
from fleetbert.deploy.inference.settings import VERSION_NAME
from fleetbert.errors import UserError, of_system

log = logging.getLogger(__name__)

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

# Of each file: inode, size, times of change of its content and of anything about it.
Signature = Tuple[Tuple[int, int, int, int], ...]


@dataclass(frozen=True)
class VersionFolder:
    """A version's folder. `bundle` is None, and `reason` says why, if it is not whole (yet), or
    cannot be read: `failed` then."""

    path: Path
    bundle: bundles.Bundle | None
    signature: Signature
    reason: str = ""
    failed: bool = False


Index = Dict[str, Dict[int, VersionFolder]]  # by model and version


def look(
    root: Path,
    known: Mapping[Path, VersionFolder],
    told: set[Path],
    failing: set[Path],
    anew: str | None = None,
) -> Index:
    """The models and versions below `root`. What has not changed since it became `known` is not
    read again, but for the model `anew`, and what cannot be read for now is as it was. What is
    wrong with a folder is logged once: `told` has those with wrong names, `failing` those that
    cannot be read.

    OSError if `root` cannot be listed.
    """
    index: Index = {}
    for folder in _folders(root, MODEL_NAME, "a model", told):
        try:
            paths = _folders(
                folder, VERSION_NAME, "a version (a number, without zeros before it)", told
            )
            unchanged = {} if folder.name == anew else known
            versions = {int(path.name): _find(path, unchanged) for path in paths}
            failing.discard(folder)
        except (FileNotFoundError, NotADirectoryError):  # removed meanwhile
            failing.discard(folder)
            continue
        except OSError as error:  # that is not absence
            versions = {
                int(path.name): found for path, found in known.items() if path.parent == folder
            }
            if folder not in failing:
                failing.add(folder)
                log.warning("%s cannot be read and counts as unchanged: %s", folder, error.strerror)
        if versions:
            index[folder.name] = versions
    return index


def _folders(root: Path, name: re.Pattern[str], what: str, told: set[Path]) -> list[Path]:
    """OSError if `root` cannot be listed. What in it cannot be read is taken for a folder."""
    folders = []
    for path in sorted(root.iterdir()):
        if path.name.startswith(".") or not _may_be_folder(path):
            continue  # somebody's temporary files
        if name.fullmatch(path.name):
            folders.append(path)
        elif path not in told:
            told.add(path)
            log.warning("%s is not named like %s and is ignored", path, what)
    return folders


def _may_be_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # not that it is absent: its reader says what is wrong
        return True


def _find(path: Path, known: Mapping[Path, VersionFolder]) -> VersionFolder:
    old = known.get(path)
    try:
        if old is not None and old.bundle is not None and _sign(old.bundle) == old.signature:
            return old
        inside = path / "bundle"
        bundle = bundles.read(inside if inside.is_dir() else path)
        return VersionFolder(path, bundle, _sign(bundle))
    except UserError as error:
        return VersionFolder(path, None, (), str(error), of_system(error))
    except OSError as error:
        return VersionFolder(path, None, (), f"{error.filename}: {error.strerror}", failed=True)


def _sign(bundle: bundles.Bundle) -> Signature:
    files = [bundle.root / bundles.MANIFEST, *bundle.tokenizer.files.values()]
    files += [bundle.root / file.path for v in bundle.manifest.variants for file in v.files]
    states = [file.stat() for file in files]
    return tuple((s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in states)
