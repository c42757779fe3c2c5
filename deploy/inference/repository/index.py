"""What lies in the repository's folder: MODEL/VERSION/ or MODEL/VERSION/bundle/, or one bundle.

Names come from listing the folder, never from a request.
"""

from __future__ import annotations

import logging
import math
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Mapping, Tuple

from fleetbert import bundle as bundles
from fleetbert.core.errors import UserError, of_system
from fleetbert.deploy.inference.settings import MODEL_NAME, VERSION_NAME

log = logging.getLogger(__name__)

INCOMPLETE_SECONDS = 30.0  # a folder that is copied has mostly changed by then

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


Folders = Dict[str, Dict[int, VersionFolder]]  # by model and version


class Index:
    """The models and versions below `root`, as they were when it was looked at last; of a `model`,
    `root` is version 1. What is wrong with a folder is logged once, and what is not whole after
    INCOMPLETE_SECONDS."""

    def __init__(self, root: Path, model: str | None = None):
        self._root = root
        self._model = model
        self._known: dict[Path, VersionFolder] = {}
        self._reported: set[Path] = set()  # folders with wrong names
        self._failing: set[Path] = set()  # folders that cannot be read
        self._broken: dict[tuple[Path, str], float] = {}  # since when, and why, not whole

    def may_heal(self) -> bool:
        """Whether a further look may find what the machine refused."""
        return bool(self._failing) or any(folder.failed for folder in self._known.values())

    def look(self, anew: str | None = None) -> Folders | None:
        """What is there now. What has not changed is not read again, but for the model `anew`, and
        what cannot be read for now is as it was; None if that is the root."""
        if self._model:
            unchanged = {} if self._model == anew else self._known
            index: Folders | None = {self._model: {1: _find(self._root, unchanged)}}
        else:
            index = self._folders_below(anew)
        if index is None:
            return None
        self._known = {v.path: v for versions in index.values() for v in versions.values()}
        self._tell_broken()
        return index

    def _folders_below(self, anew: str | None) -> Folders | None:
        index: Folders = {}
        try:
            folders = self._folders(self._root, MODEL_NAME, "a model")
        except OSError as error:
            self._tell(self._root, logging.ERROR, "the repository %s cannot be listed: %s", error)
            return None
        self._failing.discard(self._root)
        for folder in folders:
            try:
                what = "a version (a number, without zeros before it)"
                paths = self._folders(folder, VERSION_NAME, what)
                unchanged = {} if folder.name == anew else self._known
                versions = {int(path.name): _find(path, unchanged) for path in paths}
                self._failing.discard(folder)
            except (FileNotFoundError, NotADirectoryError):  # removed meanwhile
                self._failing.discard(folder)
                continue
            except OSError as error:  # that is not absence
                known = self._known.items()
                versions = {int(path.name): v for path, v in known if path.parent == folder}
                words = "%s cannot be read and counts as unchanged: %s"
                self._tell(folder, logging.WARNING, words, error)
            if versions:
                index[folder.name] = versions
        return index

    def _tell_broken(self) -> None:
        now = time.monotonic()
        broken = ((v.path, v.reason) for v in self._known.values() if v.bundle is None)
        self._broken = {key: self._broken.get(key, now) for key in broken}
        for (path, reason), since in self._broken.items():
            if since <= now - INCOMPLETE_SECONDS:
                log.warning("%s is not served: %s", path, reason)
                self._broken[path, reason] = math.inf

    def _tell(self, folder: Path, level: int, words: str, error: OSError) -> None:
        if folder not in self._failing:
            self._failing.add(folder)
            log.log(level, words, folder, error.strerror)

    def _folders(self, root: Path, name: re.Pattern[str], what: str) -> list[Path]:
        """OSError if `root` cannot be listed. What in it cannot be read is taken for a folder."""
        folders = []
        for path in sorted(root.iterdir()):
            if path.name.startswith(".") or not _may_be_folder(path):
                continue  # somebody's temporary files
            if name.fullmatch(path.name):
                folders.append(path)
            elif path not in self._reported:
                self._reported.add(path)
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
