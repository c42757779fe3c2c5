"""Watches the servers from a trainer: Paddle retries for 300 s at each pull, and goes on."""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
import time

from fleetbert.core.errors import NOT_CONNECTED, NotConnected
from fleetbert.launch import heartbeat

log = logging.getLogger(__name__)

LISTEN_LIMIT = 120.0  # seconds for a server to listen
LOST_AFTER = 7.0  # seconds in which nothing is heard of a server's machine


def _connect(endpoint: str) -> socket.socket:
    """NotConnected unless something listens there in time."""
    host, _, port = endpoint.rpartition(":")
    until = time.monotonic() + LISTEN_LIMIT
    while True:
        try:
            return socket.create_connection((host, int(port)), timeout=5)
        except OSError as error:
            if time.monotonic() > until:
                raise NotConnected(
                    f"server {endpoint}: cannot be reached ({error}); look whether it runs, and "
                    "whether --servers names it as the trainers see it"
                ) from error
        time.sleep(0.05)


class Watch:
    """A connection to each server, on which nothing is ever sent: its end is the server's.

    Then this process says so and exits at once, with the code of a start that may work when it is
    tried again: its main thread may be deep in a pull that will not end.
    """

    def __init__(self, servers: list[str]):
        self.selector = selectors.DefaultSelector()
        self.ended = False
        for number, endpoint in enumerate(servers):
            connection = _connect(endpoint)
            connection.setblocking(False)
            heartbeat.notice_end_of_machine(connection, LOST_AFTER)
            self.selector.register(connection, selectors.EVENT_READ, f"{number} ({endpoint})")
        threading.Thread(target=self._run, daemon=True).start()

    def end(self) -> None:
        self.ended = True

    def _run(self) -> None:
        while not self.ended:
            for key, _ in self.selector.select(0.5):
                try:
                    alive = bool(key.fileobj.recv(1))  # type: ignore[union-attr]
                except BlockingIOError:
                    continue
                except OSError:
                    alive = False
                if not alive and not self.ended:
                    log.error(
                        f"not connected: server {key.data} has gone: it was killed or its machine "
                        "is down; start the job again, it goes on from its newest checkpoint"
                    )
                    os._exit(NOT_CONNECTED)
