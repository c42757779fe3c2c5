"""One writer of a folder at a time; the second is told who the first is.

The lock is the kernel's (flock), on a small file that says who has it. It dies with its process,
however that ends: a file that is left over locks nothing.

On NFS, Linux asks the server (NFS 4, or NFS 3 with lockd), so that other machines count. Mounted
with `nolock` or `local_lock`, only writers on the same machine see each other. Where a file system
knows no locks at all, a line says so and nobody is refused.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import shlex
import socket
import threading
import time
from pathlib import Path
from typing import Iterator

import psutil

from fleetbert.core import files
from fleetbert.core.errors import UserError

log = logging.getLogger(__name__)

WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
LONGEST = 300  # characters of a command line that are told
PATIENCE = 1.0  # seconds in which a new owner has written who it is


_held: dict[Path, tuple[int, int]] = {}  # by this process: descriptor and thread


def _forget() -> None:
    """In a child that was forked: it is not to keep the locks of a parent that dies."""
    for descriptor, _ in _held.values():
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_forget)


@contextlib.contextmanager
def only_writer(lock: Path, of: str, remedy: str, wait: bool = False) -> Iterator[None]:
    """Be the only process that writes `of`, for which the file `lock` stands.

    UserError where another does, with its number, its command and `remedy`; with `wait` a line
    says so, and its end is waited for. A thread may take what it has again. OSError where the file
    cannot be made.
    """
    path = lock.parent.resolve() / lock.name
    if path in _held and _held[path][1] == threading.get_ident():
        yield
        return
    descriptor = _take(path, of, remedy, wait)
    _held[path] = descriptor, threading.get_ident()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # with the whole folder, perhaps
            path.unlink()
        if _held.pop(path, None):
            os.close(descriptor)


@contextlib.contextmanager
def only_job(folder: Path) -> Iterator[None]:
    """Make a job's output folder, and be the only process that writes it; UserError where another
    does, or where nothing can be written to it. A new folder that stays empty is removed."""
    remedy = "wait for its end, stop it, or choose another output_dir"
    with files.new_folders(folder):
        files.make_output_dir(folder)
        with only_writer(folder / ".writing", f"output_dir: {folder}", remedy):
            yield


def check_free(lock: Path, of: str, remedy: str) -> None:
    """UserError where another process or thread has `lock`, as from `only_writer`."""
    path = lock.parent.resolve() / lock.name
    if path in _held and _held[path][1] == threading.get_ident():
        return
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        if not _lock(descriptor, path):
            raise UserError(f"{of}: {_owner(path)} is writing it; {remedy}")
    finally:
        os.close(descriptor)


def _take(path: Path, of: str, remedy: str, wait: bool) -> int:
    """The descriptor that holds the lock."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if not _lock(descriptor, path):
                if not wait:
                    raise UserError(f"{of}: {_owner(path)} is writing it; {remedy}")
                log.info(f"{of}: waits for {_owner(path)}, which is writing it")
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_still(descriptor, path):
                with contextlib.suppress(OSError):  # a full disk: nobody will know who we are
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, json.dumps(_self()).encode(), 0)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its owner removed it on leaving


def _lock(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
        log.warning(f"{path.parent}: its file system has no locks; have only one job write there")
    return True


def _is_still(descriptor: int, path: Path) -> bool:
    """Whether the file that is open is the one at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _self() -> dict[str, str | int]:
    command = " ".join(shlex.join(psutil.Process().cmdline()).split())
    if len(command) > LONGEST:
        command = command[:LONGEST] + " ..."
    return {"process": os.getpid(), "machine": socket.gethostname(), "command": command}


def _owner(path: Path) -> str:
    """Who has the lock, as words."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            owner = json.loads(path.read_text(encoding="utf-8"))
            process, machine, command = owner["process"], owner["machine"], owner["command"]
        except (OSError, ValueError, LookupError, TypeError):
            process, machine, command = 0, "", ""
        here = machine == socket.gethostname()
        if process and (not here or psutil.pid_exists(process)):  # else it is of a former owner
            where = "" if here else f" on {machine}"
            return f"process {process}{where} (`{command}`)"
        if time.monotonic() > until:
            return "another process"
        time.sleep(0.02)
