"""A process that has imported Paddle, opened nothing, and forks workers.

A forked worker is there in milliseconds instead of seconds, and shares the memory that holds Paddle
with all others: 33 MB of its own for a tiny model instead of 150. Paddle's threads come with the
first engine, which is opened after the fork.

The server asks with a byte and the ends of a socket and of a pipe, for the worker's frames and for
what it prints, and gets the worker's process id. A worker is forked twice, so that it becomes the
server's child (PR_SET_CHILD_SUBREAPER): the server waits for it and kills it as if it had started
it itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import warnings
from multiprocessing.reduction import recvfds, sendfds
from typing import BinaryIO, Callable, Sequence

NAME = "fleetbert-fork"  # of the process, as `top` shows it
ASK_SECONDS = 60.0  # for a worker, which waits until Paddle is imported
ADOPT_SECONDS = 10.0  # until a worker is the server's child
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
PID = struct.Struct("<i")
POLL_SECONDS = 0.01


class Forked:
    """A worker, as `subprocess.Popen` would have it."""

    def __init__(self, pid: int, stdout: BinaryIO):
        self.pid, self.stdout = pid, stdout
        self.returncode: int | None = None
        self._lock = threading.Lock()  # its number may be another process's once it was waited for

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
                if ended:
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
            source, target = os.pipe()
            try:
                numbers = ",".join(map(str, processors)).encode()
                self._socket.sendall(PID.pack(len(numbers)) + numbers)
                sendfds(self._socket, [theirs.fileno(), target])
                answer = self._socket.recv(PID.size)
                if not answer:
                    raise ConnectionError("the process that forks workers has ended")
            except BaseException:
                os.close(source)
                self.process.kill()  # what it does, or answers later, nobody knows
                raise
            finally:
                os.close(target)
            (pid,) = PID.unpack(answer)
            return Forked(pid, os.fdopen(source, "rb"))


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
            processors = channel.recv(*PID.unpack(head)) if any(head) else b""
            theirs, output = recvfds(channel, 2)
            pid = _fork_twice(channel, theirs, output, parent, processors.decode())
            for number in (theirs, output):
                os.close(number)
            channel.sendall(PID.pack(pid))


def _fork_twice(
    channel: socket.socket, theirs: int, output: int, parent: int, processors: str
) -> int:
    """The process id of a worker that is the child of `parent`."""
    source, target = os.pipe()
    between = os.fork()
    if not between:
        pid = os.fork()
        if pid:
            os.write(target, PID.pack(pid))
            os._exit(0)
        channel.close()
        _become_worker(theirs, output, parent, processors)
    os.waitpid(between, 0)
    (pid,) = PID.unpack(os.read(source, PID.size))
    os.close(source)
    os.close(target)
    return int(pid)


def _become_worker(theirs: int, output: int, parent: int, processors: str) -> None:
    from fleetbert.deploy.inference.workers import worker

    for number in (1, 2):
        os.dup2(output, number)
    until = time.monotonic() + ADOPT_SECONDS
    while os.getppid() != parent and time.monotonic() < until:
        time.sleep(0.001)
    worker.main(theirs, parent, [int(number) for number in processors.split(",") if number])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
