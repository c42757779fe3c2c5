"""A worker process: opens a bundle's variants and answers batches, one after another.

`process.py` starts it with the number of a socket's descriptor, the parent's process id and its
processors, or `fork_server.py` forks it. It reads frames (frames.py) from the socket and answers
each with one. It ends with its parent, however that ends, and leaves Ctrl-C, SIGTERM and SIGHUP to
it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Mapping, Sequence

from fleetbert.compat import environment

if TYPE_CHECKING:
    from fleetbert.deploy.inference.workers.batches import Opened


def main(
    descriptor: int,
    parent: int,
    processors: Sequence[int],
    forking: int | None = None,
    opened: Mapping[str, Opened] | None = None,
) -> None:
    """forking: the socket's descriptor over which come the ends of workers that this one forks.
    opened: variants that the process has opened already, which forked this one."""
    environment.die_with_parent(parent)
    leave_signals_to_parent()
    set_name("fleetbert-work")
    if processors:
        os.sched_setaffinity(0, processors)
    # Not before: threads that NumPy and Paddle start inherit the processors.
    from fleetbert.deploy.inference.workers import batches

    with contextlib.suppress(ConnectionError):
        channel = None if forking is None else socket.socket(fileno=forking)
        batches.serve(batches.Worker(socket.socket(fileno=descriptor), channel, opened))
    os._exit(0)  # without Paddle's teardown


def leave_signals_to_parent() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def set_name(name: str) -> None:
    """What `top` and `ps -o comm` call this process, at most 15 letters."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name)


if __name__ == "__main__":
    main(
        int(sys.argv[1]),
        int(sys.argv[2]),
        [int(number) for number in sys.argv[3].split(",") if number],
    )
