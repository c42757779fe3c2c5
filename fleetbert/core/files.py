"""Files that are complete or absent, whatever happens to their writer."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Callable, Iterator

from fleetbert.core import strict_json
from fleetbert.core.errors import UserError

NOWHERE = Path(os.devnull)  # can hold no file
NO_SPACE = os.strerror(errno.ENOSPC)  # other libraries put it into errors of their own types


def sha256(path: str | os.PathLike[str]) -> str:
    """sha256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A stream whose bytes appear at `path` in one rename when the block ends without an error.

    OSError if the folder cannot be written or `path` is a folder.
    """
    if path.is_dir():
        raise IsADirectoryError(21, "Is a directory", str(path))
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.tmp-", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(0o666 & ~umask())  # mkstemp makes files that only the owner can read
        temporary.replace(path)
    except BaseException:
        temporary.unlink()
        raise
    sync(path.parent)


def below_home(path: str | os.PathLike[str]) -> str:
    """A path whose `~` is the user's home, as in a shell, which leaves it alone behind key=."""
    return os.path.expanduser(path)  # noqa: PTH111  a text, perhaps no path


def home() -> Path | None:
    """The user's; None of a uid that has neither HOME nor an entry in passwd, as in containers."""
    try:
        return Path.home()
    except (RuntimeError, KeyError):  # KeyError: Python 3.8
        return None


def cached(name: str, fill: Callable[[Path], Any]) -> Path:
    """The folder of that name in the user's cache, which `fill(folder)` made once; where the cache
    cannot be written, a temporary one."""
    user = home()
    base = Path(os.environ.get("XDG_CACHE_HOME") or (user or NOWHERE) / ".cache") / "fleetbert"
    final = base / name
    if final.is_dir():
        return final
    try:
        base.mkdir(parents=True, exist_ok=True)
        with temporary_folder(base, f".{name}.tmp-") as new:
            fill(new)
            if not final.is_dir():  # nor has another process made it meanwhile
                put_in_place(new, final)
        return final
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="fleetbert-"))
        fill(folder)
        return folder


@contextmanager
def new_folders(folder: Path) -> Iterator[None]:
    """For a block that makes a folder and its parents: those among them that are new and still
    empty when it ends are removed."""
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        yield
    finally:
        with suppress(OSError):  # one has files
            for each in new:
                each.rmdir()


def make_output_dir(folder: Path) -> None:
    """Make the folder of a job's results; UserError where nothing can be written to it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):  # of a name that no other process has
            pass
    except OSError as error:
        raise UserError(f"output_dir: cannot write to {folder}: {error.strerror}") from error


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by a value as JSON, null for NaN, in one rename; UserError if it cannot be
    written."""
    with writing(path), replacing(path) as stream:
        stream.write((strict_json.dumps(value, indent=1) + "\n").encode("utf-8"))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write `path` (a full disk, an unwritable folder) into a UserError."""
    try:
        with room(path):
            yield
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written: {error.strerror or error}; mend that, and start the same "
            "command again"
        ) from error


@contextmanager
def room(path: Path) -> Iterator[None]:
    """UserError where the disk is full while `path` is made, whatever type a library has for it."""
    try:
        yield
    except Exception as error:
        full = errno.ENOSPC, errno.EDQUOT, errno.EFBIG
        if NO_SPACE not in str(error) and getattr(error, "errno", None) not in full:
            raise
        raise UserError(
            f"{path}: cannot be written: {getattr(error, 'strerror', None) or NO_SPACE}; make "
            "room, and start the same command again"
        ) from error


def check_not_read(path: Path, *read: str | None) -> None:
    """UserError where `path`, which is to be written, is one of the files `read`."""
    if any(name is not None and os.path.realpath(name) == os.path.realpath(path) for name in read):
        raise UserError(
            f"{path}: is read here, and would be overwritten; move it, or name another output_dir"
        )


def is_mount_point(folder: Path) -> bool:
    """Whether something is mounted there, even a folder of the same disk (Linux)."""
    try:
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:
        return folder.is_mount()
    escaped = re.compile(rb"\\([0-7]{3})")
    mounted = (escaped.sub(lambda m: bytes([int(m[1], 8)]), line.split(b" ")[4]) for line in lines)
    return os.fsencode(folder.resolve()) in mounted


@contextmanager
def temporary_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A temporary folder in `parent`, gone afterwards if it was not renamed.

    Its owner holds a lock on it; the kernel frees the lock when the owner dies, so that the next
    writer can tell what a killed one left from what a live one is writing.
    """
    with locked(parent):  # no other writer cleans between mkdtemp and our lock
        for former in parent.glob(f"{prefix}*"):
            remove_if_abandoned(former)
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def remove_if_abandoned(folder: Path) -> bool:
    """Remove a temporary folder unless its writer is alive; returns whether it is gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, waiting for it. The kernel frees it when its owner dies."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def replacing_folder(final: Path, prefix: str) -> Iterator[Path]:
    """A temporary folder that takes the place of `final` in one rename when the block ends without
    an error.

    No rename moves a mount point. In one, the new files and folders take the places of those of
    the same names, manifest.json the last; all others stay.
    """
    is_mount = is_mount_point(final)
    with temporary_folder(final if is_mount else final.parent, prefix) as new:
        yield new
        sync_tree(new)
        if not is_mount:
            put_in_place(new, final)
            return
        for path in sorted(new.iterdir(), key=lambda path: path.name == "manifest.json"):
            _rename(path, final / path.name)
        sync(final)


def put_in_place(new: Path, final: Path) -> None:
    """Rename the temporary folder `new` to `final`; what was at `final` ends up at `new`."""
    new.chmod(0o777 & ~umask())  # mkdtemp makes folders that only the owner can read
    _rename(new, final)
    sync(final.parent)


def _rename(new: Path, final: Path) -> None:
    """Rename a file or folder; what was at `final` ends up at `new`."""
    if not final.exists():
        new.rename(final)
    elif not _exchange(new, final):
        aside = new.with_name(new.name + "-old")
        final.rename(aside)
        new.rename(final)
        aside.rename(new)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two files or folders in one step (renameat2); False where system or disk cannot."""
    at_fdcwd, rename_exchange = -100, 2
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    if renameat2(at_fdcwd, os.fsencode(first), at_fdcwd, os.fsencode(second), rename_exchange) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL):
        return False
    raise OSError(code, os.strerror(code), str(second))


def sync(path: Path) -> None:
    """Force a file or a folder's list of names to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """`sync` of a folder and of everything in it."""
    for path in folder.rglob("*"):
        sync(path)
    sync(folder)


def umask() -> int:
    """The bits that new files of this process do not get."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
