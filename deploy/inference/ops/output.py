"""stderr that keeps nobody waiting, whoever reads it, or does not.

A pipe that is full stops who writes to it, and a log's reader may hang: a pager, an agent, a pod's
runtime. So descriptor 2 becomes a pipe of our own that is always read: that of this process, its
native libraries (gRPC) and its workers. A thread hands on what comes; what waits for longer than
there is room is dropped by whole lines and counted.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import queue
import termios
import threading
import time

log = logging.getLogger("fleetbert.serve")

MOST_WAITING = 1 << 20  # bytes
PAUSE = 0.01  # seconds between two reads: each one interrupts the event loop
END_SECONDS = 2.0  # for the last lines, if somebody reads them

dropped = 0  # lines
_waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()
_taken = _done = 0  # bytes, ever: what waits is the difference
_pipe = _log = -1  # descriptors: where our lines come from and go to


def start() -> None:
    """From now on and until this process ends; a second call does nothing."""
    global _pipe, _log
    if _log >= 0:
        return
    _log = os.dup(2)
    _pipe, end = os.pipe()
    os.dup2(end, 2)
    os.close(end)
    for work in (_gather, _hand_on):
        threading.Thread(target=work, daemon=True).start()
    atexit.register(stop)


def stop(seconds: float = END_SECONDS) -> None:
    """Hand on what waits, within so many seconds. What is written later goes to the log itself; to
    nobody if that is not read."""
    os.dup2(_log, 2)
    until, idle = time.monotonic() + seconds, 0
    while idle < 3 and time.monotonic() < until:
        busy = any(fcntl.ioctl(_pipe, termios.FIONREAD, bytes(4))) or _taken > _done
        idle = 0 if busy else idle + 1  # what has been read may not wait yet
        time.sleep(PAUSE)
    if _taken > _done:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _gather() -> None:
    global dropped, _taken
    rest = b""
    while True:
        lines, newline, rest = (rest + os.read(_pipe, 1 << 16)).rpartition(b"\n")
        if len(rest) > 1 << 16:  # no text at all
            rest = b""
        lines += newline
        if _taken - _done + len(lines) <= MOST_WAITING:
            _taken += len(lines)
            _waiting.put(lines)
        else:
            dropped += lines.count(b"\n")
        time.sleep(PAUSE)


def _hand_on() -> None:
    global dropped, _done
    reported = 0
    while True:
        lines = _waiting.get()
        try:
            written = 0
            while written < len(lines):
                written += os.write(_log, lines[written:])
            if dropped > reported:
                log.warning(
                    "%d lines of the log were dropped: nobody read them", dropped - reported
                )
                reported = dropped
        except OSError:  # a disk is full, or the reader has gone
            dropped += lines.count(b"\n")
        finally:
            _done += len(lines)
