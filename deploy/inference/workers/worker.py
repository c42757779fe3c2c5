"""A worker process: opens a bundle's variants and answers batches, one after another.

`process.py` starts it with the number of a socket's descriptor, the parent's process id and its
processors. It reads frames (frames.py) from the socket and answers each with one. It ends with its
parent, however that ends, and leaves Ctrl-C, SIGTERM and SIGHUP to it. A last word `early` says
that nobody waits for the processors: then it imports Paddle before it is told what to open.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys

from fleetbert.compat import environment


def main(descriptor: int, parent: int, processors: list[int], early: bool) -> None:
    environment.die_with_parent(parent)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if processors:
        os.sched_setaffinity(0, processors)
    # Not before: threads that NumPy and Paddle start inherit the processors.
    from fleetbert.compat import paddle_inference
    from fleetbert.deploy.inference.workers import batches

    if early:
        with contextlib.suppress(Exception):  # who opens a variant that needs it will say why
            paddle_inference.import_inference()
    with contextlib.suppress(ConnectionError):
        batches.serve(socket.socket(fileno=descriptor))
    os._exit(0)  # without Paddle's teardown


if __name__ == "__main__":
    main(
        int(sys.argv[1]),
        int(sys.argv[2]),
        [int(number) for number in sys.argv[3].split(",") if number],
        early="early" in sys.argv[4:],
    )
