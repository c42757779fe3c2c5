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
import logging
import os
import signal
import socket
import sys
import threading
import time
from multiprocessing.connection import wait

import psutil

from fleetbert.compat import environment
from fleetbert.launch import heartbeat, leftovers
from fleetbert.launch.channel import HELLO_LIMIT, JOIN_LIMIT, LOST, Connection, Message, job
from fleetbert.launch.hub import Hub
from fleetbert.launch.policy import STOPPED, Restarts
from fleetbert.launch.process import Process

log = logging.getLogger(__name__)

PORTS, APART = 8, 101  # that the hub may listen at, and how far apart


def supervised(hang_timeout: float, resumes: bool) -> None:
    """Become the supervisor of a rank, and exit with the job, under paddle.distributed.launch. In
    the rank, which runs the same command, start the heartbeat. Elsewhere do nothing.

    resumes: whether a restarted job resumes from a checkpoint.
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
        hub = Hub(host, ports, len(endpoints), hang_timeout, restarts)
        threading.Thread(target=hub.run, daemon=True).start()
    supervisor = _Supervisor(number, hang_timeout)
    try:
        return supervisor.run(supervisor.connect(host, ports))
    finally:
        supervisor.rank.finish()


def max_restart() -> int:
    """Return the launcher's `--max_restart`, from its command line, as it does not pass it on."""
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


class _Supervisor:
    """Starts and ends one rank as the hub says, and reports on it."""

    def __init__(self, number: int, hang_timeout: float):
        self.rank, self.hang_timeout = Process("rank", number), hang_timeout
        self.stopping = False  # a signal asked the rank to stop
        signal.signal(signal.SIGTERM, self._forward)
        signal.signal(signal.SIGINT, self._forward)

    def _forward(self, signum: int, _: object) -> None:
        self.stopping = True
        self.rank.ask(signum)

    def run(self, hub: Connection) -> int:
        """Run until the hub sends the exit code."""
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
                        if self.stopping:  # while the ranks were down
                            hub.send({"code": STOPPED[0], "step": 0, "done": 0})
                        else:
                            monitor = self._start(message["start"])
                if self.rank.running:
                    ended = self.rank.has_ended()
                    monitor.look(passed)
                    report: Message = {"step": monitor.step, "done": monitor.done}
                    if ended:
                        self.rank.finish()
                        hub.send({**report, "code": self.rank.code or 0})
                    elif now - reported >= 1.0:
                        reported = now
                        hub.send({**report, "phase": monitor.phase, "quiet": monitor.quiet})
            except OSError:
                return self._give_up(f"lost the supervisor of rank 0: {LOST}; ending this rank")

    def connect(self, host: str, ports: list[int]) -> Connection:
        until = time.monotonic() + JOIN_LIMIT
        for port in itertools.cycle(ports):
            try:
                connection = socket.create_connection((host, port), HELLO_LIMIT)
                hub = Connection(connection, self.hang_timeout)
                hub.send({"rank": self.rank.number, "job": job()})
                hub.hello()
                return hub
            except OSError as error:
                if time.monotonic() > until or self.stopping:
                    sys.exit(self._give_up(f"cannot reach rank 0 at {host}:{port}: {error}"))
            time.sleep(0.1 / len(ports))
        raise AssertionError  # the ports have no end

    def _give_up(self, why: str) -> int:
        log.error(why)
        return STOPPED[0] if self.stopping else 1

    def _start(self, master: str) -> heartbeat.Monitor:
        monitor = heartbeat.Monitor()
        file = monitor.descriptor
        environ = {**os.environ, "PADDLE_MASTER": master}
        environ[heartbeat.VARIABLE] = f"{os.getpid()},{file}"
        self.rank.start([sys.executable, "-u", *sys.argv], environ, descriptors=[file])
        return monitor
