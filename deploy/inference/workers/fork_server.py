"""A process that has imported Paddle, opened nothing, and forks workers.

A forked worker is there in milliseconds instead of seconds, and shares the memory that holds Paddle
with all others: 33 MB of its own for a tiny model instead of 150. Paddle's threads come with the
first engine, which is opened after the fork.

The server sends the worker's ends of two sockets and of a pipe (`Ends`), and gets the worker's
process id. A worker is forked twice, so that it becomes the server's child
(PR_SET_CHILD_SUBREAPER): the server waits for it and kills it as if it had started it itself.

A worker that has opened a variant with one thread forks further ones in the same way, which share
the weights too (`batches.Worker.fork`).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
import warnings
from multiprocessing.reduction import recvfds, sendfds
from typing import TYPE_CHECKING, Callable, Mapping, Sequence

if TYPE_CHECKING:
    from fleetbert.deploy.inference.workers.batches import Opened

NAME = "fleetbert-fork"  # of the process, as `top` shows it
ASK_SECONDS = 60.0  # for a worker, which waits until Paddle is imported
ADOPT_SECONDS = 10.0  # until a worker is the server's child
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
PID = struct.Struct("<i")
POLL_SECONDS = 0.01


class Ends:
    """The server's ends of what a forked worker has besides the socket for its frames: of a pipe
    for what it prints, and of a socket over which it gets the ends of a worker that it forks."""

    def __init__(self, forking: socket.socket, theirs: socket.socket):
        """Send the worker's ends, and that of the socket for its frames, to the process that forks
        it."""
        source, target = os.pipe()
        self.stdout = os.fdopen(source, "rb")
        self.forking, forked = socket.socketpair()
        try:
            with forked:
                sendfds(forking, [theirs.fileno(), target, forked.fileno()])
        except BaseException:
            self.close()
            raise
        finally:
            os.close(target)

    def close(self) -> None:
        self.stdout.close()
        self.forking.close()


class Forked:
    """A worker, as `subprocess.Popen` would have it."""

    def __init__(self, pid: int, ends: Ends):
        self.pid, self.stdout, self.forking = pid, ends.stdout, ends.forking
        self.returncode: int | None = None
        self._lock = threading.Lock()  # its number may be another process's once it was waited for

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
                if ended:
                    self.forking.close()
                    signal = os.WTERMSIG(status)
                    self.returncode = -signal if signal else os.WEXITSTATUS(status)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired(f"worker {self.pid}", timeout or 0.0)
            time.sleep(POLL_SECONDS)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, 9)


class ForkServer:
    """The server's side; the process is started at once, and again where it has ended."""

    def __init__(self, start: Callable[[int], subprocess.Popen[bytes]]):
        """start: starts `main` with a socket's descriptor."""
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._start = start
        self._lock = threading.Lock()  # one question at a time
        self._open()

    def _open(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self.process = self._start(theirs.fileno())
        self._socket.settimeout(ASK_SECONDS)

    def fork(self, theirs: socket.socket, processors: Sequence[int]) -> Forked:
        """A worker on these processors (none: any), at the other end of whose socket the server
        is; OSError where there is none. Waits until Paddle is imported."""
        with self._lock:
            if self.process.poll() is not None:
                self._socket.close()
                self._open()
            ends = None
            try:
                numbers = ",".join(map(str, processors)).encode()
                self._socket.sendall(PID.pack(len(numbers)) + numbers)
                ends = Ends(self._socket, theirs)
                answer = self._socket.recv(PID.size)
                if not answer:
                    raise ConnectionError("the process that forks workers has ended")
            except BaseException:
                if ends is not None:
                    ends.close()
                self.process.kill()  # what it does, or answers later, nobody knows
                raise
            (pid,) = PID.unpack(answer)
            return Forked(pid, ends)


def main(descriptor: int, parent: int) -> None:
    from fleetbert.compat import environment
    from fleetbert.deploy.inference.workers import worker

    environment.die_with_parent(parent)
    worker.leave_signals_to_parent()
    worker.set_name(NAME)
    from fleetbert.compat import paddle_inference
    from fleetbert.deploy.inference.workers import batches  # noqa: F401  what workers need

    with contextlib.suppress(Exception):  # who opens a variant that needs it will say why
        paddle_inference.import_inference()
    # Python 3.12 warns of forks where there is another thread. Paddle's only sleeps, with no lock.
    warnings.simplefilter("ignore", DeprecationWarning)
    gc.collect()
    gc.freeze()  # a collection in a worker would copy all pages of these objects
    with socket.socket(fileno=descriptor) as channel:
        while head := channel.recv(PID.size):
            text = channel.recv(*PID.unpack(head)).decode() if any(head) else ""
            processors = [int(number) for number in text.split(",") if number]
            channel.sendall(PID.pack(fork_worker(channel, [channel], parent, processors)))


def fork_worker(
    channel: socket.socket,
    sockets: Sequence[socket.socket],
    parent: int,
    processors: Sequence[int],
    opened: Mapping[str, Opened] | None = None,
) -> int:
    """The process id of a worker that becomes the child of `parent`; its ends come over `channel`.

    sockets: of this process, which the worker closes. opened: variants that this process has
    opened. OSError where there can be no further process.
    """
    theirs, output, forking = descriptors = recvfds(channel, 3)
    source, target = os.pipe()
    try:
        between = os.fork()
        if not between:
            try:
                pid = os.fork()
                if pid:
                    os.write(target, PID.pack(pid))
                else:
                    for each in sockets:
                        each.close()
                    _become_worker(theirs, output, forking, parent, processors, opened)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)  # never back into what this process was forked from
    finally:
        for number in (*descriptors, target):
            os.close(number)
    os.waitpid(between, 0)
    with os.fdopen(source, "rb") as answers:
        answer = answers.read(PID.size)
    if not answer:
        raise OSError(errno.EAGAIN, "no further process can be forked")
    return int(PID.unpack(answer)[0])


def _become_worker(
    theirs: int,
    output: int,
    forking: int,
    parent: int,
    processors: Sequence[int],
    opened: Mapping[str, Opened] | None,
) -> None:
    from fleetbert.deploy.inference.workers import worker

    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    until = time.monotonic() + ADOPT_SECONDS
    while os.getppid() != parent and time.monotonic() < until:
        time.sleep(0.001)
    worker.main(theirs, parent, processors, forking, opened)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
