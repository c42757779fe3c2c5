"""No process outlives its job, whatever becomes of the launcher.

Each child of the launcher dies with it (PR_SET_PDEATHSIG), but not what a child has started. So the
launcher forks an orphan reaper, which only waits for its end. Then it kills every process that has
this job's FLEETBERT_RUN in its environment, in whatever session or group it is.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Iterator

from fleetbert.core.errors import UserError

VARIABLE = "FLEETBERT_RUN"
LIMIT = 10.0  # seconds for killed processes to be gone


@contextlib.contextmanager
def reaping() -> Iterator[Path]:
    """Make a temporary folder for the job. At the end, even by SIGKILL, it is removed, and every
    process whose FLEETBERT_RUN is in it is killed."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="fleetbert-"))
    except OSError as error:
        raise UserError(f"no temporary folder can be made: {error}; set TMPDIR") from None
    read, write = os.pipe()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    reaper = os.fork()
    if reaper == 0:
        _reap(folder, read, write)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.close(read)
    try:
        yield folder
    finally:
        os.close(write)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(reaper, 0)
        shutil.rmtree(folder, ignore_errors=True)


def _reap(folder: Path, read: int, write: int) -> None:
    """Wait in the fork for the launcher's end, with all signals blocked, and then clean up. The
    merged log stays locked until this process ends."""
    try:
        os.setsid()
        os.close(write)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.read(read, 1)  # nothing is ever written: this returns when the launcher is gone
        kill(folder)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os._exit(0)


def kill(folder: Path, *more: str) -> None:
    """Send SIGKILL to every process that `find` returns, until none is left."""
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        processes = find(folder, *more)
        if not processes:
            return
        for process in processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.01)


def find(folder: Path, *more: str) -> list[int]:
    """Return the processes whose FLEETBERT_RUN is `folder` or in it, and whose environment has the
    entries `more` ("name=value"). Linux only; elsewhere none."""
    run = b"\0" + VARIABLE.encode() + b"=" + os.fsencode(folder)
    entries = [b"\0" + entry.encode() + b"\0" for entry in more]
    processes = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it ended, or is not ours
            environ = b"\0" + path.read_bytes() + b"\0"
            is_of_run = run + b"/" in environ or run + b"\0" in environ
            if is_of_run and all(entry in environ for entry in entries):
                processes.append(int(path.parent.name))
    return processes
