"""The messages between the supervisors of ranks and their hub: lines of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from typing import TypedDict

from fleetbert.launch import heartbeat

HELLO_LIMIT = 10.0  # seconds for the other side of a new connection to say who it is
JOIN_LIMIT = 300.0  # seconds for all supervisors to arrive, and for a killed rank to be gone
LOST = "its machine or its launcher ended"


def job() -> str:
    """Return what identifies this job."""
    return os.environ["PADDLE_TRAINER_ENDPOINTS"]


class Message(TypedDict, total=False):
    """A line of JSON between a supervisor and the hub."""

    job: str  # both sides' first words: its endpoints

    # From a supervisor.
    rank: int  # with its first words
    step: int  # that its rank is at
    done: int  # steps of its process
    phase: int  # of `heartbeat`
    quiet: float  # seconds without a heartbeat
    code: int  # the rank's exit code
    stopped: bool  # as the hub wanted

    # From the hub.
    start: str  # the rank; the address is of rank 0's TCP store
    stop: bool  # the rank
    exit: int  # with this code


class Connection:
    def __init__(self, connection: socket.socket, hang_timeout: float):
        self.socket = connection
        self.rest = b""
        connection.settimeout(HELLO_LIMIT)
        heartbeat.notice_end_of_machine(connection, hang_timeout)

    def send(self, message: Message) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def hello(self) -> Message:
        """Return the peer's first line, and read no more; OSError if it is of another job."""
        line = byte = b""
        while byte != b"\n" and len(line) < 1 << 16:
            byte = self.socket.recv(1) or b"\n"
            line += byte
        with contextlib.suppress(ValueError, LookupError, TypeError):
            message: Message = json.loads(line)
            if message["job"] == job():
                return message
        raise ConnectionError("something else answers there")

    def receive(self) -> list[Message]:
        """Return the messages that have arrived; OSError if the peer is gone."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("closed")
        *lines, self.rest = (self.rest + data).split(b"\n")
        return [json.loads(line) for line in lines]
