"""Supervises the ranks of paddle.distributed.launch.

Paddle's launcher reads `--max_restart`, but restarts only with an etcd server as `--master`:
without one, the first rank that dies ends the job. So each process that the launcher starts
becomes a supervisor, small and without Paddle, and the rank is its child:

    launcher ── supervisor of rank 0 (and hub) ── rank 0
             ── supervisor of rank 1 ──────────── rank 1

The hub listens at the first of PADDLE_TRAINER_ENDPOINTS (which Paddle leaves unused) or, where
that port is taken, at one of a few others that everyone knows to try. It hears from every
supervisor how its rank is, and decides for all: when a rank is killed, fails or hangs, all ranks
are killed and, if `--max_restart` allows, started again together. `trainer.resume: auto` then goes
on from the newest whole checkpoint.

A rank hangs when it has no heartbeat for `strategy.hang_timeout` seconds: it is stopped (SIGSTOP),
swapped out, or stuck in native code that holds the interpreter. A rank that waits for others has
one, so the rank that it waits for can be named. A supervisor dies with its launcher, a rank with
its supervisor.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import TypedDict

import psutil

from fleetbert.compat import environment
from fleetbert.core.errors import NOT_CONNECTED, UserError
from fleetbert.launch import heartbeat, leftovers
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
from fleetbert.launch.process import Process

log = logging.getLogger(__name__)

PORTS, APART = 8, 101  # that the hub may listen at, and how far apart
HELLO_LIMIT = 10.0  # seconds for the other side of a new connection to say who it is
MEET_LIMIT = 30.0  # seconds for ranks that all began to join to have joined: gloo may hang there
MEET_NOTE = 10.0  # seconds after which those who are waited for are named
JOIN_LIMIT = 300.0  # seconds for all supervisors to arrive, and for a killed rank to be gone
SUSPECT = 15.0  # seconds without a heartbeat that are a hang when another rank has failed meanwhile
LOST = "its machine or its launcher ended"


def supervised(hang_timeout: float, resumes: bool) -> None:
    """Under paddle.distributed.launch: become the supervisor of a rank, and exit with the job. In
    the rank, which runs the same command, beat; elsewhere do nothing.

    resumes: whether a job that is started again goes on from where it was.
    """
    # `servers` supervises those of a parameter server.
    if not heartbeat.start() and not os.environ.get("PADDLE_PSERVERS_IP_PORT_LIST"):
        leftovers.check(os.environ)
        if os.environ.get("PADDLE_TRAINER_ENDPOINTS"):
            sys.exit(_supervise(hang_timeout, resumes))


def _supervise(hang_timeout: float, resumes: bool) -> int:
    environment.die_with_parent(os.getppid())
    number = int(os.environ["PADDLE_TRAINER_ID"])
    endpoints = os.environ["PADDLE_TRAINER_ENDPOINTS"].split(",")
    host, _, port = endpoints[0].rpartition(":")
    ports = [int(port), *range(int(port) - APART, 1023, -APART)][:PORTS]
    if number == 0:
        most = max_restart() if resumes else 0
        limit = f"--max_restart {most} allows no more"
        if not resumes:
            limit = "it cannot go on from a checkpoint (trainer.resume: auto can)"
        restarts = Restarts(most, limit, log.warning)
        hub = _Hub(host, ports, len(endpoints), hang_timeout, restarts)
        threading.Thread(target=hub.run, daemon=True).start()
    supervisor = _Supervisor(number, hang_timeout)
    try:
        return supervisor.run(supervisor.connect(host, ports))
    finally:
        supervisor.rank.finish()


def max_restart() -> int:
    """The launcher's `--max_restart`, read off its command line, for it does not hand it on."""
    if "PADDLE_MAX_RESTART" in os.environ:
        return int(os.environ["PADDLE_MAX_RESTART"])
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--max_restart", type=int, default=3)  # the launcher's own
    words: list[str] = []
    with contextlib.suppress(psutil.Error):
        words = psutil.Process(os.getppid()).cmdline()
    if sys.argv[0] in words:
        words = words[: words.index(sys.argv[0])]
    return int(parser.parse_known_args(words)[0].max_restart)


class _Message(TypedDict, total=False):
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


class _Connection:
    def __init__(self, connection: socket.socket, hang_timeout: float):
        self.socket = connection
        self.rest = b""
        connection.settimeout(HELLO_LIMIT)
        heartbeat.notice_end_of_machine(connection, hang_timeout)

    def send(self, message: _Message) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def hello(self) -> _Message:
        """The other side's first line, and nothing after it; OSError if it is a stranger."""
        line = byte = b""
        while byte != b"\n" and len(line) < 1 << 16:
            byte = self.socket.recv(1) or b"\n"
            line += byte
        with contextlib.suppress(ValueError, LookupError, TypeError):
            message: _Message = json.loads(line)
            if message["job"] == _job():
                return message
        raise ConnectionError("something else answers there")

    def receive(self) -> list[_Message]:
        """What has arrived; OSError when the other side is gone."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("closed")
        *lines, self.rest = (self.rest + data).split(b"\n")
        return [json.loads(line) for line in lines]


class _Supervisor:
    """Starts and ends one rank as the hub says, and reports on it."""

    def __init__(self, number: int, hang_timeout: float):
        self.rank, self.hang_timeout = Process("rank", number), hang_timeout
        self.asked = False  # to stop
        signal.signal(signal.SIGTERM, self._forward)
        signal.signal(signal.SIGINT, self._forward)

    def _forward(self, signum: int, _: object) -> None:
        self.asked = True
        self.rank.ask(signum)

    def run(self, hub: _Connection) -> int:
        """Until the hub says with which code to exit."""
        monitor, looked, reported = heartbeat.Monitor(), time.monotonic(), 0.0
        while True:
            ready = wait([hub.socket], 0.1)
            now = time.monotonic()
            # At most a second at a time: of a process that was stopped itself, time is no sign.
            passed, looked = min(now - looked, 1.0), now
            try:
                for message in hub.receive() if ready else ():
                    if "exit" in message:
                        return message["exit"]
                    if "stop" in message:
                        self.rank.finish()
                        hub.send({"stopped": True})
                    if "start" in message:
                        if self.asked:  # while the ranks were down
                            hub.send({"code": STOPPED[0], "step": 0, "done": 0})
                        else:
                            monitor = self._start(message["start"])
                if self.rank.running:
                    ended = self.rank.has_ended()
                    monitor.look(passed)
                    report: _Message = {"step": monitor.step, "done": monitor.done}
                    if ended:
                        self.rank.finish()
                        hub.send({**report, "code": self.rank.code or 0})
                    elif now - reported >= 1.0:
                        reported = now
                        hub.send({**report, "phase": monitor.phase, "quiet": monitor.quiet})
            except OSError:
                return self._give_up(f"lost the supervisor of rank 0: {LOST}; ending this rank")

    def connect(self, host: str, ports: list[int]) -> _Connection:
        until = time.monotonic() + JOIN_LIMIT
        for port in itertools.cycle(ports):
            try:
                connection = socket.create_connection((host, port), HELLO_LIMIT)
                hub = _Connection(connection, self.hang_timeout)
                hub.send({"rank": self.rank.number, "job": _job()})
                hub.hello()
                return hub
            except OSError as error:
                if time.monotonic() > until or self.asked:
                    sys.exit(self._give_up(f"cannot reach rank 0 at {host}:{port}: {error}"))
            time.sleep(0.1 / len(ports))
        raise AssertionError  # the ports have no end

    def _give_up(self, why: str) -> int:
        log.error(why)
        return STOPPED[0] if self.asked else 1

    def _start(self, master: str) -> heartbeat.Monitor:
        monitor = heartbeat.Monitor()
        file = monitor.descriptor
        environ = {**os.environ, "PADDLE_MASTER": master}
        environ[heartbeat.VARIABLE] = f"{os.getpid()},{file}"
        self.rank.start([sys.executable, "-u", *sys.argv], environ, descriptors=[file])
        return monitor


@dataclass
class _Rank:
    """What the hub knows of a rank; most is what its supervisor said last, see `_Message`."""

    name: str
    supervisor: _Connection | None = None
    step: int = 0
    done: int = 0
    phase: int = 0
    quiet: float = 0.0
    code: int | None = None
    stopped: bool = False

    def begin(self) -> None:
        """Forget the former start."""
        vars(self).update(vars(_Rank(self.name, self.supervisor)))

    def send(self, message: _Message) -> None:
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
        """Why the job cannot go on, if this rank is to blame: for `limit` seconds without a
        heartbeat, too."""
        at = f" (at step {self.step})" if self.step else " (before its first step)"
        if self.supervisor is None:
            return Cause(Kind.LOST, f"lost the supervisor of {self.name}: {LOST}", 1, False)
        if self.code is not None:
            return cause_of(self.name, self.code, at) if self.code else None
        if self.quiet > limit:
            text = f"{self.name} has not moved for {self.quiet:.0f} s{at}"
            return Cause(Kind.HUNG, text, HUNG)
        return None


class _Joining:
    """Of the ranks of one start: watches that they join each other."""

    def __init__(self, ranks: list[_Rank]):
        self.ranks = ranks
        self.since: float | None = None  # the first began to join; once all have, the last
        self.told = self.all_joining = False

    def cause(self) -> Cause | None:
        """That they do not find each other. Those who are waited for are named in a line."""
        absent = [rank.name for rank in self.ranks if rank.phase < JOINING]
        late = [rank.name for rank in self.ranks if rank.phase < JOINED]
        now = time.monotonic()
        if not late or len(absent) == len(self.ranks):
            return None
        if self.since is None or (not absent and not self.all_joining):
            self.since, self.all_joining = now, not absent
        if now - self.since > MEET_NOTE and not self.told:
            self.told = True
            log.warning(f"waiting for {', '.join(absent or late)} to join the other ranks")
        if self.all_joining and now - self.since > MEET_LIMIT:
            text = f"{', '.join(late)} did not find the other ranks in {MEET_LIMIT:.0f} s"
            return Cause(Kind.UNCONNECTED, text, NOT_CONNECTED)
        return None


class _Hub:
    def __init__(
        self, host: str, ports: list[int], world: int, hang_timeout: float, restarts: Restarts
    ):
        self.host, self.hang_timeout, self.restarts = host, hang_timeout, restarts
        self.ranks = [_Rank(f"rank {number}") for number in range(world)]
        self.server = _listen(ports, world)
        self.looked = time.monotonic()

    def run(self) -> None:
        """To the job's end; then every supervisor is told the exit code."""
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
        """Wait for all supervisors; returns the ranks of those that did not come."""
        until = time.monotonic() + JOIN_LIMIT
        while time.monotonic() < until:
            absent = [rank.name for rank in self.ranks if rank.supervisor is None]
            if not absent:
                break
            self.server.settimeout(1)
            try:
                connection = _Connection(self.server.accept()[0], self.hang_timeout)
                rank = self.ranks[connection.hello()["rank"]]
                connection.send({"job": _job()})
                rank.supervisor = connection
            except (OSError, LookupError, TypeError):  # a stranger, or nobody
                continue
        self.server.close()
        return absent

    def _watch(self) -> Cause | None:
        """Until all ranks ended well (None), or one did not, or hangs."""
        patience, joining = Patience(stopping=STOP_LIMIT), _Joining(self.ranks)
        while True:
            self._hear()
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
        """Have all ranks killed; whether they are gone."""
        for rank in self.ranks:
            rank.send({"stop": True})
        until = time.monotonic() + JOIN_LIMIT
        while not all(rank.stopped for rank in self.ranks):
            self._hear()
            if time.monotonic() > until or any(rank.supervisor is None for rank in self.ranks):
                return False
        return True

    def _hear(self) -> None:
        """What supervisors have to say, for a moment."""
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
        """The one that Paddle's launcher chose, if its port is still free."""
        master = os.environ.get("PADDLE_MASTER", "")
        try:
            socket.create_server(("", int(master.rpartition(":")[2]))).close()
        except (OSError, ValueError):
            return self._free_address()
        return master

    def _free_address(self) -> str:
        """For rank 0's TCP store. A new one each time: the former's port may not be free yet."""
        with socket.create_server(("", 0)) as server:
            return f"{self.host}:{server.getsockname()[1]}"


def _job() -> str:
    """What tells this job from others."""
    return os.environ["PADDLE_TRAINER_ENDPOINTS"]


def _listen(ports: list[int], backlog: int) -> socket.socket:
    for port in ports:
        with contextlib.suppress(OSError):  # it is taken
            return socket.create_server(("", port), backlog=backlog)
    raise UserError(
        f"rank 0: none of the ports {', '.join(map(str, ports))} is free here; start the "
        "job again, or with PORT_RANGE=first:last in the environment"
    )
