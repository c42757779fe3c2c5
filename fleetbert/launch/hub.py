"""The hub of a job's ranks: every supervisor reports to it, and it decides for all."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from dataclasses import dataclass
from multiprocessing.connection import wait

from fleetbert.core.errors import NOT_CONNECTED, UserError
from fleetbert.launch.channel import JOIN_LIMIT, LOST, Connection, Message, job
from fleetbert.launch.heartbeat import JOINED, JOINING
from fleetbert.launch.policy import (
    HUNG,
    STOP_LIMIT,
    STOPPED,
    Cause,
    Kind,
    Patience,
    Restarts,
    cause_of,
)

log = logging.getLogger(__name__)

MEET_LIMIT = 30.0  # seconds for ranks that all began to join to have joined: gloo may hang there
MEET_NOTE = 10.0  # seconds after which those who are waited for are named
SUSPECT = 15.0  # seconds without a heartbeat that are a hang when another rank has failed meanwhile


@dataclass
class Rank:
    """The state of a rank, mostly from its supervisor's last `Message`."""

    name: str
    supervisor: Connection | None = None
    step: int = 0
    done: int = 0
    phase: int = 0
    quiet: float = 0.0
    code: int | None = None
    stopped: bool = False

    def begin(self) -> None:
        """Forget the former start."""
        vars(self).update(vars(Rank(self.name, self.supervisor)))

    def send(self, message: Message) -> None:
        try:
            if self.supervisor is not None:
                self.supervisor.send(message)
        except OSError:
            self.supervisor = None

    def receive(self) -> None:
        try:
            for message in self.supervisor.receive() if self.supervisor is not None else ():
                vars(self).update(message)
        except OSError:
            self.supervisor = None

    def cause(self, limit: float) -> Cause | None:
        """Return why the job cannot go on, if it is because of this rank. A rank without a
        heartbeat for `limit` seconds hangs."""
        at = f" (at step {self.step})" if self.step else " (before its first step)"
        if self.supervisor is None:
            return Cause(Kind.LOST, f"lost the supervisor of {self.name}: {LOST}", 1, False)
        if self.code is not None:
            return cause_of(self.name, self.code, at) if self.code else None
        if self.quiet > limit:
            text = f"{self.name} has not moved for {self.quiet:.0f} s{at}"
            return Cause(Kind.HUNG, text, HUNG)
        return None


class Joining:
    """Watches that the ranks of one start join each other."""

    def __init__(self, ranks: list[Rank]):
        self.ranks = ranks
        self.since: float | None = None  # the first began to join; once all have, the last
        self.warned = self.all_joining = False

    def cause(self) -> Cause | None:
        """Return a cause if the ranks do not find each other. Log the ranks that are late."""
        absent = [rank.name for rank in self.ranks if rank.phase < JOINING]
        late = [rank.name for rank in self.ranks if rank.phase < JOINED]
        now = time.monotonic()
        if not late or len(absent) == len(self.ranks):
            return None
        if self.since is None or (not absent and not self.all_joining):
            self.since, self.all_joining = now, not absent
        if now - self.since > MEET_NOTE and not self.warned:
            self.warned = True
            log.warning(f"waiting for {', '.join(absent or late)} to join the other ranks")
        if self.all_joining and now - self.since > MEET_LIMIT:
            text = f"{', '.join(late)} did not find the other ranks in {MEET_LIMIT:.0f} s"
            return Cause(Kind.UNCONNECTED, text, NOT_CONNECTED)
        return None


class Hub:
    def __init__(
        self, host: str, ports: list[int], world: int, hang_timeout: float, restarts: Restarts
    ):
        self.host, self.hang_timeout, self.restarts = host, hang_timeout, restarts
        self.ranks = [Rank(f"rank {number}") for number in range(world)]
        self.server = _listen(ports, world)
        self.looked = time.monotonic()

    def run(self) -> None:
        """Run until the job ends; then send every supervisor the exit code."""
        try:
            code = self._supervise()
            for rank in reversed(self.ranks):  # ours last: this process ends with it
                rank.send({"exit": code})
        finally:  # also after a bug here: whoever loses the hub gives up
            for rank in self.ranks:
                if rank.supervisor is not None:
                    rank.supervisor.socket.close()

    def _supervise(self) -> int:
        absent = self._join()
        if absent:
            log.error(f"{', '.join(absent)} did not arrive in {JOIN_LIMIT:.0f} s")
            return 1
        master = self._first_address()
        total = 0  # steps of all starts
        first: int | None = None  # step that the job began with
        while True:
            for rank in self.ranks:
                rank.begin()
                rank.send({"start": master})
            cause = self._watch()
            foremost = max(self.ranks, key=lambda rank: rank.step)
            total += foremost.done
            if foremost.done and first is None:
                first = foremost.step - foremost.done
            if cause is None:
                again = total - (foremost.step - (first or 0))
                self.restarts.say_done(f"; {again} of {total} steps were repeats")
                return 0
            if first is None and cause.kind == Kind.FAILED:  # it would only fail again
                cause = cause._replace(mendable=False)
            if not self.restarts.start_again(cause):
                return cause.code
            if not self._stop():
                log.error("the ranks cannot be ended; giving up")
                return cause.code
            master = self._free_address()

    def _join(self) -> list[str]:
        """Wait for all supervisors; return the names of the ranks whose supervisor is absent."""
        until = time.monotonic() + JOIN_LIMIT
        while time.monotonic() < until:
            absent = [rank.name for rank in self.ranks if rank.supervisor is None]
            if not absent:
                break
            self.server.settimeout(1)
            try:
                connection = Connection(self.server.accept()[0], self.hang_timeout)
                rank = self.ranks[connection.hello()["rank"]]
                connection.send({"job": job()})
                rank.supervisor = connection
            except (OSError, LookupError, TypeError):  # a stranger, or nobody
                continue
        self.server.close()
        return absent

    def _watch(self) -> Cause | None:
        """Wait until all ranks have ended well (None), or one has failed or hangs."""
        patience, joining = Patience(stopping=STOP_LIMIT), Joining(self.ranks)
        while True:
            self._receive()
            if all(rank.code == 0 for rank in self.ranks):
                return None
            failed = any(rank.code and rank.code not in STOPPED for rank in self.ranks)
            limit = min(SUSPECT, self.hang_timeout) if failed else self.hang_timeout
            maybe = [*(rank.cause(limit) for rank in self.ranks), joining.cause()]
            causes = [cause for cause in maybe if cause is not None]
            cause = patience.real(causes, all(rank.code is not None for rank in self.ranks))
            if cause is not None:
                return cause

    def _stop(self) -> bool:
        """Kill all ranks; return whether they are gone."""
        for rank in self.ranks:
            rank.send({"stop": True})
        until = time.monotonic() + JOIN_LIMIT
        while not all(rank.stopped for rank in self.ranks):
            self._receive()
            if time.monotonic() > until or any(rank.supervisor is None for rank in self.ranks):
                return False
        return True

    def _receive(self) -> None:
        """Receive messages of supervisors for a moment."""
        sockets = {rank.supervisor.socket: rank for rank in self.ranks if rank.supervisor}
        ready = wait(list(sockets), 0.1)
        now = time.monotonic()
        passed, self.looked = min(now - self.looked, 1.0), now
        for rank in self.ranks:
            rank.quiet += passed  # until its supervisor says otherwise
        for connection, rank in sockets.items():
            if connection in ready:
                rank.receive()

    def _first_address(self) -> str:
        """Return the address that Paddle's launcher chose, if its port is still free."""
        master = os.environ.get("PADDLE_MASTER", "")
        try:
            socket.create_server(("", int(master.rpartition(":")[2]))).close()
        except (OSError, ValueError):
            return self._free_address()
        return master

    def _free_address(self) -> str:
        """Return a new address for rank 0's TCP store. The former port may not be free yet."""
        with socket.create_server(("", 0)) as server:
            return f"{self.host}:{server.getsockname()[1]}"


def _listen(ports: list[int], backlog: int) -> socket.socket:
    for port in ports:
        with contextlib.suppress(OSError):  # it is taken
            return socket.create_server(("", port), backlog=backlog)
    raise UserError(
        f"rank 0: none of the ports {', '.join(map(str, ports))} is free here; start the "
        "job again, or with PORT_RANGE=first:last in the environment"
    )
