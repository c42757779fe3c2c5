"""A rank's heartbeat: a small file that its supervisor opens for it, and reads.

The rank writes it twice a second in a thread, so also during a long evaluation or export.
"""

from __future__ import annotations

import os
import socket
import struct
import tempfile
import threading
import time

from fleetbert.compat import environment

VARIABLE = "FLEETBERT_SUPERVISOR"  # "process,descriptor"
INTERVAL = 0.5  # seconds between beats

_RECORD = struct.Struct("qqqq")  # beats, the job's step, steps of this process, phase
JOINING, JOINED = 1, 2  # the other ranks; before it 0


class _Heart:
    """Writes the heartbeat, in the rank."""

    def __init__(self, file: int):
        self.file = file
        self.count = self.step = self.done = self.phase = 0

    def write(self) -> None:
        os.pwrite(self.file, _RECORD.pack(self.count, self.step, self.done, self.phase), 0)

    def beat(self) -> None:
        while True:
            self.count += 1
            self.write()
            time.sleep(INTERVAL)


_heart: _Heart | None = None


def start() -> bool:
    """Start the heartbeat in a rank that has a supervisor, and die with the supervisor. Return
    whether this process is such a rank."""
    global _heart
    if VARIABLE not in os.environ:
        return False
    supervisor, file = os.environ[VARIABLE].split(",")
    environment.die_with_parent(int(supervisor))
    _heart = _Heart(int(file))
    threading.Thread(target=_heart.beat, daemon=True).start()
    return True


def note_step(step: int, done: int) -> None:
    """Write the job's step, and how many steps this process did, in a rank."""
    if _heart is not None:
        _heart.step, _heart.done = step, done
        _heart.write()


def note_phase(phase: int) -> None:
    """Write that the rank begins to join the others, or has joined them."""
    if _heart is not None:
        _heart.phase = phase
        _heart.write()


class Monitor:
    """Reads the heartbeat of one process, in the supervisor."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile()  # noqa: SIM115
        self.file.write(_RECORD.pack(0, 0, 0, 0))
        self.file.flush()
        self.count = self.step = self.done = self.phase = 0
        self.quiet = 0.0  # seconds without a beat

    @property
    def descriptor(self) -> int:
        """The descriptor that the process inherits."""
        return self.file.fileno()

    def look(self, passed: float) -> None:
        """Read the heartbeat; `passed`: seconds since the last call."""
        record = os.pread(self.descriptor, _RECORD.size, 0)
        count, self.step, self.done, self.phase = _RECORD.unpack(record)
        self.quiet = 0.0 if count != self.count else self.quiet + passed
        self.count = count


def notice_end_of_machine(connection: socket.socket, seconds: float) -> None:
    """Make the connection fail once the machine at its other end is silent for so long. A machine
    that vanishes closes no connection. Linux only."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = (
        ("TCP_KEEPIDLE", 3),
        ("TCP_KEEPINTVL", 2),
        ("TCP_KEEPCNT", 2),
        ("TCP_USER_TIMEOUT", int(min(1000 * seconds, 1 << 30))),
    )
    for name, value in options:
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
