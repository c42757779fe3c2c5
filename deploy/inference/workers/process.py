"""The processes that workers run in, each with a socket to it: forked by a process that has
imported Paddle (`fork_server`), or fresh interpreters.

Light to import: importing Paddle takes longest, so a server starts the process that does before it
imports what it needs itself (`start_early`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Awaitable, Callable, NamedTuple, Sequence, Union

from fleetbert.core import limits
from fleetbert.deploy.inference.workers.fork_server import Ends, Forked, ForkServer

if TYPE_CHECKING:
    from fleetbert.deploy.inference.settings import Engine

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "fleetbert.deploy.inference.workers.worker")  # of a worker
FORK_COMMAND = (sys.executable, "-m", "fleetbert.deploy.inference.workers.fork_server")
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


Process = Union["subprocess.Popen[bytes]", Forked]


class Started(NamedTuple):
    """A process, and our end of the socket to it."""

    process: Process
    socket: socket.socket


forking: ForkServer | None = None  # forks workers; None: they are started anew


def share_processors(engine: Engine) -> tuple[tuple[tuple[int, ...], ...], int]:
    """The processors of each worker (none where it is not pinned), and its threads."""
    numbers = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    allowed = limits.read()
    count = allowed.processors
    if engine.workers is not None:
        workers = engine.workers
    elif engine.device != "cpu":
        workers = 1
    else:
        workers = min(MOST_WORKERS, max(1, count // (engine.threads or 1)))
        if allowed.memory is not None:
            workers = min(workers, max(1, allowed.memory // WORKER_BYTES - 1))
    threads = engine.threads or max(1, count // workers)
    # Containers that have a quota each would all be pinned to the same processors.
    if not engine.pin or workers * threads > len(numbers) or count < len(numbers):
        return ((),) * workers, threads
    return tuple(
        tuple(numbers[number * threads : (number + 1) * threads]) for number in range(workers)
    ), threads


def start_early(engine: Engine) -> None:
    """Start the process that forks workers, which imports Paddle at once. It ends with this
    process, as all do. On GPUs each worker is started anew: a driver's state outlives no fork."""
    global forking
    if engine.device != "cpu" or sys.platform != "linux":
        return
    threads = share_processors(engine)[1]

    def start_forking(theirs: int) -> subprocess.Popen[bytes]:
        process = _popen(FORK_COMMAND, [str(theirs), str(os.getpid())], threads, theirs)
        _log_later(process)
        return process

    with contextlib.suppress(OSError):  # workers are started anew then, and the pool will say why
        forking = ForkServer(start_forking)


async def start(processors: Sequence[int], threads: int) -> Started:
    """A new worker. Call in the thread that lives as long as the workers shall."""

    def start_anew(theirs: socket.socket) -> Process:
        numbers = ",".join(map(str, processors))
        words = [str(theirs.fileno()), str(os.getpid()), numbers]
        return _popen(COMMAND, words, threads, theirs.fileno())

    if forking is None:
        return _with_socket(start_anew)
    fork = functools.partial(forking.fork, processors=processors)
    coming = asyncio.get_running_loop().run_in_executor(None, _with_socket, fork)
    try:
        return await asyncio.shield(coming)
    except asyncio.CancelledError:
        coming.add_done_callback(_end)
        raise


async def fork_from(process: Process, ask: Callable[[], Awaitable[int]]) -> Started:
    """A new worker that another one forks; `ask` has it do so, and gives the new one's number."""
    assert isinstance(process, Forked)
    with contextlib.ExitStack() as failed:
        ours, theirs = socket.socketpair()
        failed.callback(ours.close)  # then a worker that there may be ends
        with theirs:
            ends = Ends(process.forking, theirs)
        failed.callback(ends.close)
        forked = Forked(await ask(), ends)
        failed.pop_all()
    try:
        _log_later(forked)
    except BaseException:
        ours.close()
        raise
    return Started(forked, ours)


def _end(coming: asyncio.Future[Started]) -> None:
    """End a worker that nobody else knows of."""
    if not coming.cancelled() and coming.exception() is None:
        started = coming.result()
        started.socket.close()
        started.process.kill()
        threading.Thread(target=started.process.wait, daemon=True).start()


def _log_later(process: Process) -> None:
    """RuntimeError where there are too many threads; nobody else knows of the process then."""
    try:
        threading.Thread(target=_log_lines, args=(process,), daemon=True).start()
    except RuntimeError:
        process.kill()
        raise


def _with_socket(start: Callable[[socket.socket], Process]) -> Started:
    """What `start` makes of their end of a socket, whose lines are logged."""
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = start(theirs)
            _log_later(process)
            return Started(process, ours)
        except BaseException:
            ours.close()
            raise


def _log_lines(process: Process) -> None:
    """What a process prints (Paddle's C++ does), as lines of the server's log."""
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            text = line.decode("utf-8", "replace").rstrip()
            if text:
                log.warning(f"worker {process.pid}: {text}")


def _popen(
    command: Sequence[str], words: Sequence[str], threads: int, descriptor: int
) -> subprocess.Popen[bytes]:
    former = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_PARENT)  # it inherits this
    try:
        process = subprocess.Popen(
            [*command, *words],
            env={**HUGE_PAGES, **os.environ, "OMP_NUM_THREADS": str(threads)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[descriptor],
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
    with contextlib.suppress(OSError):
        niceness = os.getpriority(os.PRIO_PROCESS, 0) + NICENESS
        os.setpriority(os.PRIO_PROCESS, process.pid, niceness)
    return process
