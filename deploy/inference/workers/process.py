"""The processes that workers run in: fresh interpreters, each with a socket to it.

Light to import: what takes a worker longest before it is told what to open is importing Paddle, so
a server starts its first ones before it imports what it needs itself (`start_early`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, NamedTuple, Sequence

from fleetbert.core import limits

if TYPE_CHECKING:
    from fleetbert.deploy.inference.settings import Engine

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "fleetbert.deploy.inference.workers.worker")  # of a worker
LEFT_TO_PARENT = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
# What a batch waits for, the listening process has to do first: reading the next one's texts takes
# a fraction of a batch's time, and makes it larger.
NICENESS = 4
# glibc (from 2.35) asks for huge pages where the kernel leaves that to programs: with one text a
# request, a worker takes 4 % less time for it (MiniLM).
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
# Of a worker with a base model in float32 (440 MB of weights), and of the listening process.
WORKER_BYTES = 768 << 20
MOST_WORKERS = 8  # unless the settings say more: each holds the weights once more


class Started(NamedTuple):
    """A process, our end of the socket to it, and what it was started for."""

    process: subprocess.Popen[bytes]
    socket: socket.socket
    processors: tuple[int, ...]
    threads: int


EARLY: list[Started] = []  # that nobody has taken yet


def share_processors(engine: Engine) -> tuple[tuple[tuple[int, ...], ...], int]:
    """The processors of each worker (none where it is not pinned), and its threads."""
    own = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    allowed = limits.read()
    count = allowed.processors
    if engine.workers is not None:
        workers = engine.workers
    elif engine.device == "gpu":
        workers = 1
    else:
        workers = min(MOST_WORKERS, max(1, count // (engine.threads or 1)))
        if allowed.memory is not None:
            workers = min(workers, max(1, allowed.memory // WORKER_BYTES - 1))
    threads = engine.threads or max(1, count // workers)
    # Containers that have a quota each would all be pinned to the same processors.
    if not engine.pin or workers * threads > len(own) or count < len(own):
        return ((),) * workers, threads
    return tuple(
        tuple(own[number * threads : (number + 1) * threads]) for number in range(workers)
    ), threads


def start_early(engine: Engine) -> None:
    """Start the workers of the first version, which import Paddle at once. They end with this
    process, as all do."""
    processors, threads = share_processors(engine)
    with contextlib.suppress(OSError):  # the pool will say why
        EARLY.extend(_start(mine, threads, early=True) for mine in processors)


def start(processors: Sequence[int], threads: int) -> Started:
    """One that was started early for these processors and has not ended, or a new one. Call in the
    thread that lives as long as the workers shall."""
    started = _take_early(tuple(processors), threads) or _start(processors, threads, early=False)
    try:
        threading.Thread(target=_log_lines, args=(started.process,), daemon=True).start()
    except RuntimeError:  # there are too many: nobody else knows of the process
        started.process.kill()
        started.socket.close()
        raise
    return started


def _take_early(processors: tuple[int, ...], threads: int) -> Started | None:
    for found in EARLY:
        if (found.processors, found.threads) == (processors, threads):
            EARLY.remove(found)
            if found.process.poll() is None:
                return found
            found.socket.close()
            break
    return None


def _log_lines(process: subprocess.Popen[bytes]) -> None:
    """What a worker prints (Paddle's C++ does), as lines of the server's log."""
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            text = line.decode("utf-8", "replace").rstrip()
            if text:
                log.warning(f"worker {process.pid}: {text}")


def _start(processors: Sequence[int], threads: int, early: bool) -> Started:
    ours, theirs = socket.socketpair()
    command = [*COMMAND, str(theirs.fileno()), str(os.getpid()), ",".join(map(str, processors))]
    former = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_PARENT)  # it inherits this
    try:
        process = subprocess.Popen(
            [*command, "early"] if early else command,
            env={**HUGE_PAGES, **os.environ, "OMP_NUM_THREADS": str(threads)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[theirs.fileno()],
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
        theirs.close()
    with contextlib.suppress(OSError):
        niceness = os.getpriority(os.PRIO_PROCESS, 0) + NICENESS
        os.setpriority(os.PRIO_PROCESS, process.pid, niceness)
    return Started(process, ours, tuple(processors), threads)
