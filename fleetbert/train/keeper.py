"""Keepers: what starts a rank under paddle.distributed.launch, watches it and starts it again.

Paddle 2.6.2's launcher reads `--max_restart`, but restarts only with an etcd server as `--master`:
without one, the first rank that dies ends the job. So each process that the launcher starts
becomes a keeper, small and without Paddle, and the rank is its child:

    launcher ── keeper of rank 0 (and hub) ── rank 0
             ── keeper of rank 1 ──────────── rank 1

Rank 0's keeper is also the hub: it listens at the first of PADDLE_TRAINER_ENDPOINTS (which Paddle
leaves unused), hears from every keeper how its rank is, and decides for all: when a rank is killed,
fails or hangs, all ranks are killed and, if `--max_restart` allows, started again together.
`trainer.resume: auto` then goes on from the newest whole checkpoint.

A rank hangs when its process gives no sign of life for `strategy.hang_timeout` seconds: it is
stopped (SIGSTOP), swapped out, or stuck in native code that holds the interpreter. Its signs come
from a thread, so a long evaluation or export is none; nor is a rank that waits for others, which
is why the one it waits for can be named. A keeper dies with its launcher, a rank with its keeper.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

from fleetbert.compat import environment
from fleetbert.errors import NOT_CONNECTED, GateFailed, UserError

log = logging.getLogger(__name__)

# Exit codes of a rank that are no reason to start it again.
FINAL = (UserError.code, GateFailed.code)
STOPPED = (143, 130, -signal.SIGTERM, -signal.SIGINT)
HUNG = 124  # of a job that ended because a rank hung, as of timeout(1)

JOIN_LIMIT = 300.0  # seconds for all keepers to arrive, and for a killed rank to be gone
STOP_LIMIT = 60.0  # seconds for the others to end by themselves when one was asked to stop
GRACE = 1.0  # seconds to learn whether the first failure heard of is only the echo of another
RETRIES = 5  # of ranks that did not find each other
SUSPECT = 15.0  # seconds of silence that count as a hang when another rank has failed meanwhile


# In the rank.

_RECORD = struct.Struct("qqq")  # signs of life, step, steps done by this process
_signs = {"file": -1, "count": 0, "step": 0, "done": 0}


def is_kept() -> bool:
    """Whether this process is a rank with a keeper."""
    return "FLEETBERT_KEEPER" in os.environ


def give_signs_of_life() -> None:
    """Tell the keeper twice a second that this process runs, and die when it dies."""
    keeper, file = os.environ["FLEETBERT_KEEPER"].split(",")
    environment.die_with_parent(int(keeper))
    _signs["file"] = int(file)

    def beat() -> None:
        while True:
            _signs["count"] += 1
            _write_signs()
            time.sleep(0.5)

    threading.Thread(target=beat, daemon=True).start()


def note_step(step: int, done: int) -> None:
    """Tell the keeper how far this rank is: the job's step, and how many this process did."""
    _signs.update(step=step, done=done)
    _write_signs()


def _write_signs() -> None:
    record = _RECORD.pack(_signs["count"], _signs["step"], _signs["done"])
    os.pwrite(_signs["file"], record, 0)


# In the keeper.


def is_needed() -> bool:
    """Whether this process was started by paddle.distributed.launch and is to keep a rank."""
    of_servers = os.environ.get("PADDLE_PSERVERS_IP_PORT_LIST")  # another launcher watches those
    return not is_kept() and "PADDLE_TRAINER_ENDPOINTS" in os.environ and not of_servers


def max_restart() -> int:
    """The launcher's `--max_restart`, read off its command line, for it does not hand it on."""
    if "PADDLE_MAX_RESTART" in os.environ:
        return int(os.environ["PADDLE_MAX_RESTART"])
    try:
        words = Path(f"/proc/{os.getppid()}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        words = []
    if sys.argv[0] in words:
        words = words[: words.index(sys.argv[0])]
    for word, following in zip(words, [*words[1:], ""]):
        name, sign, value = word.partition("=")
        if name == "--max_restart":
            return int(value if sign else following)
    return 3  # the launcher's own default


def keep(hang_timeout: float, restarts: int) -> int:
    """Run this command again as a rank, as often as the hub says; returns the job's exit code."""
    environment.die_with_parent(os.getppid())
    rank = int(os.environ["PADDLE_TRAINER_ID"])
    endpoints = os.environ["PADDLE_TRAINER_ENDPOINTS"].split(",")
    host, port = endpoints[0].rsplit(":", 1)
    if rank == 0:
        hub = _Hub(host, int(port), len(endpoints), hang_timeout, restarts)
        threading.Thread(target=hub.run, daemon=True).start()
    keeper = _Keeper(rank, hang_timeout)
    try:
        return keeper.run(host, int(port))
    finally:
        keeper.end_rank()


class _Link:
    """A connection on which both sides send lines of JSON."""

    def __init__(self, connection: socket.socket):
        self.connection = connection
        self.rest = b""
        connection.settimeout(10)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def send(self, **message: Any) -> None:
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]]:
        """What has arrived; OSError when the other side is gone."""
        data = self.connection.recv(1 << 16)
        if not data:
            raise ConnectionError("closed")
        *lines, self.rest = (self.rest + data).split(b"\n")
        return [json.loads(line) for line in lines]


class _Keeper:
    """Starts and ends one rank as the hub says, and reports on it."""

    def __init__(self, rank: int, hang_timeout: float):
        self.rank, self.hang_timeout = rank, hang_timeout
        self.child: subprocess.Popen[bytes] | None = None
        self.asked = False
        signal.signal(signal.SIGTERM, self._forward)
        signal.signal(signal.SIGINT, self._forward)

    def _forward(self, signum: int, frame: Any) -> None:
        self.asked = True
        if self.child is not None and self.child.poll() is None:
            self.child.send_signal(signum)

    def run(self, host: str, port: int) -> int:
        link = _Link(self._connect(host, port))
        link.send(rank=self.rank, job=os.environ["PADDLE_TRAINER_ENDPOINTS"])
        looked = reported = time.monotonic()
        silent = 0.0  # seconds without a word from the hub
        while True:
            ready = wait([link.connection], 0.1)
            now = time.monotonic()
            # At most a second at a time: of a keeper that was stopped itself, the time is no sign.
            passed, looked = min(now - looked, 1.0), now
            silent += passed
            try:
                for message in link.receive() if ready else ():
                    silent = 0.0
                    if "exit" in message:
                        return int(message["exit"])
                    if message.get("stop"):
                        self.end_rank()
                        link.send(stopped=True)
                    if "start" in message:
                        if self.asked:  # to stop, while the ranks were down
                            link.send(ended=STOPPED[0], step=0, done=0)
                        else:
                            self._start_rank(message["start"])
                if self.child is not None:
                    self._look(passed)
                    code = self.child.poll()
                    if code is not None:
                        self._look(0.0)
                        link.send(ended=code, step=self.step, done=self.done)
                        self.end_rank()
                    elif now - reported >= 1.0:
                        reported = now
                        link.send(step=self.step, done=self.done, quiet=self.quiet)
            except OSError:
                return self._give_up("lost the keeper of rank 0: its machine or its launcher ended")
            if silent > self.hang_timeout + JOIN_LIMIT * (self.child is None):
                return self._give_up(f"the keeper of rank 0 has not moved for {silent:.0f} s")

    def _give_up(self, reason: str) -> int:
        log.error(f"{reason}; ending this rank")
        return STOPPED[0] if self.asked else 1

    def _connect(self, host: str, port: int) -> socket.socket:
        until = time.monotonic() + JOIN_LIMIT
        while True:
            try:
                return socket.create_connection((host, port), timeout=10)
            except OSError as error:
                if time.monotonic() > until or self.asked:
                    log.error(f"cannot reach rank 0 at {host}:{port}: {error}")
                    sys.exit(STOPPED[0] if self.asked else 1)
            time.sleep(0.1)

    def _start_rank(self, master: str) -> None:
        self.signs = tempfile.TemporaryFile()  # noqa: SIM115
        self.signs.write(_RECORD.pack(0, 0, 0))
        self.signs.flush()
        self.count, self.step, self.done, self.quiet = 0, 0, 0, 0.0
        file = self.signs.fileno()
        self.child = subprocess.Popen(
            [sys.executable, "-u", *sys.argv],
            env={
                **os.environ,
                "PADDLE_MASTER": master,
                "FLEETBERT_KEEPER": f"{os.getpid()},{file}",
            },
            pass_fds=[file],
            start_new_session=True,  # so that all that a rank started can be ended with it
        )

    def _look(self, passed: float) -> None:
        count, self.step, self.done = _RECORD.unpack(os.pread(self.signs.fileno(), _RECORD.size, 0))
        self.quiet = 0.0 if count != self.count else self.quiet + passed
        self.count = count

    def end_rank(self) -> None:
        """Kill the rank, if there is one, and all that it started."""
        if self.child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()
        self.signs.close()
        self.child = None


class _Rank:
    """What the hub knows of a rank."""

    def __init__(self) -> None:
        self.link: _Link | None = None
        self.begin()

    def begin(self) -> None:
        """Forget the former attempt."""
        self.step = self.done = 0
        self.quiet = 0.0  # seconds without a sign of life
        self.code: int | None = None  # of its end
        self.stopped = False  # by our order


class _Cause(NamedTuple):
    """Why the ranks cannot go on."""

    order: int  # of several causes the lowest is the real one, the others follow from it
    text: str
    code: int  # for the job to end with
    mendable: bool  # starting again may help


class _Hub:
    def __init__(self, host: str, port: int, world: int, hang_timeout: float, restarts: int):
        self.host, self.hang_timeout, self.restarts = host, hang_timeout, restarts
        self.ranks = [_Rank() for _ in range(world)]
        self.server = socket.create_server(("", port), backlog=world)
        self.looked = self.pinged = time.monotonic()

    def run(self) -> None:
        """Supervise the job to its end and tell every keeper the exit code."""
        try:
            code = self._supervise()
            for rank in reversed(self.ranks):  # ours last: this process ends with it
                self._send(rank, exit=code)
        finally:  # also after a bug here: whoever loses the hub gives up
            for rank in self.ranks:
                if rank.link is not None:
                    rank.link.connection.close()

    def _supervise(self) -> int:
        absent = self._join()
        if absent:
            log.error(f"ranks {', '.join(map(str, absent))} did not arrive in {JOIN_LIMIT:.0f} s")
            return 1
        master = os.environ.get("PADDLE_MASTER") or self._free_address()
        used = retries = total = 0
        first: int | None = None  # step that the job began with
        while True:
            for rank in self.ranks:
                rank.begin()
                self._send(rank, start=master)
            cause = self._watch()
            foremost = max(self.ranks, key=lambda rank: rank.step)
            total += foremost.done
            if foremost.done and first is None:
                first = foremost.step - foremost.done
            if cause is None:
                if used:
                    again = total - (foremost.step - (first or 0))
                    log.info(f"done after restarts: {used}; {again} of {total} steps were repeats")
                return 0
            given_up = cause.code == NOT_CONNECTED and retries == RETRIES
            if not cause.mendable or given_up or (first is None and cause.order == _FAILED):
                log.error(cause.text)
                return cause.code
            if cause.code == NOT_CONNECTED:
                retries += 1
                log.warning(f"{cause.text}; trying again, which is no restart")
            elif used == self.restarts:
                log.error(f"{cause.text}; no restart of {self.restarts} is left")
                return cause.code
            else:
                used += 1
                log.warning(f"{cause.text}; restart {used} of {self.restarts}")
            if not self._stop():
                log.error("the ranks cannot be ended; giving up")
                return cause.code
            master = self._free_address()

    def _join(self) -> list[int]:
        """Wait for all keepers; returns the ranks of those that did not come."""
        until = time.monotonic() + JOIN_LIMIT
        while time.monotonic() < until:
            absent = [n for n, rank in enumerate(self.ranks) if rank.link is None]
            if not absent:
                break
            self.server.settimeout(1)
            try:
                link = _Link(self.server.accept()[0])
                hello = link.receive()[0]
                if hello["job"] == os.environ["PADDLE_TRAINER_ENDPOINTS"]:
                    self.ranks[hello["rank"]].link = link
            except (OSError, ValueError, LookupError, TypeError):  # a stranger, or nobody
                continue
        self.server.close()
        return absent

    def _watch(self) -> _Cause | None:
        """Until all ranks ended well (None), or one did not, or hangs."""
        since: float | None = None
        while True:
            self._hear()
            if all(rank.code == 0 for rank in self.ranks):
                return None
            causes = self._causes()
            if not causes:
                continue
            since = time.monotonic() if since is None else since
            worst = min(causes)
            over = all(rank.code is not None for rank in self.ranks)
            if over or time.monotonic() - since > (STOP_LIMIT if worst.order == _ASKED else GRACE):
                return worst

    def _causes(self) -> list[_Cause]:
        causes = []
        failed = any(rank.code and rank.code not in STOPPED for rank in self.ranks)
        limit = min(SUSPECT, self.hang_timeout) if failed else self.hang_timeout
        for number, rank in enumerate(self.ranks):
            code = rank.code
            at = f"(at step {rank.step})" if rank.step else "(before its first step)"
            if rank.link is None:
                text = f"lost the keeper of rank {number}: its machine or its launcher ended"
                causes.append(_Cause(_LOST, text, 1, False))
            elif code is None:
                if rank.quiet > limit:
                    text = f"rank {number} has not moved for {rank.quiet:.0f} s {at}"
                    causes.append(_Cause(_HANG, text, HUNG, True))
            elif code in FINAL:
                text = f"rank {number} ended with an error; see its log"
                causes.append(_Cause(_ERROR, text, code, False))
            elif code in STOPPED:
                text = f"rank {number} was asked to stop"
                causes.append(_Cause(_ASKED, text, abs(code) % 128 + 128, False))
            elif code < 0:
                name = signal.Signals(-code).name
                hint = ", by someone or for want of memory" if code == -signal.SIGKILL else ""
                text = f"rank {number} was killed ({name}{hint}) {at}"
                order = _KILLED if code == -signal.SIGKILL else _CRASHED
                causes.append(_Cause(order, text, 128 - code, True))
            elif code == NOT_CONNECTED:
                text = f"rank {number} could not connect to the others"
                causes.append(_Cause(_UNCONNECTED, text, code, True))
            elif code > 0:
                text = f"rank {number} failed with exit code {code} {at}; see its log"
                causes.append(_Cause(_FAILED, text, code, True))
        return causes

    def _stop(self) -> bool:
        """Have all ranks killed; whether they are gone."""
        for rank in self.ranks:
            self._send(rank, stop=True)
        until = time.monotonic() + JOIN_LIMIT
        while not all(rank.stopped for rank in self.ranks):
            self._hear()
            if time.monotonic() > until or any(rank.link is None for rank in self.ranks):
                return False
        return True

    def _hear(self) -> None:
        links: dict[Any, _Rank] = {
            rank.link.connection: rank for rank in self.ranks if rank.link is not None
        }
        ready = wait(list(links), 0.1)
        now = time.monotonic()
        passed, self.looked = min(now - self.looked, 1.0), now
        for rank in self.ranks:
            rank.quiet += passed  # until its keeper says otherwise
        for connection in ready:
            rank = links[connection]
            try:
                for message in rank.link.receive() if rank.link is not None else ():
                    rank.step = message.get("step", rank.step)
                    rank.done = message.get("done", rank.done)
                    rank.quiet = message.get("quiet", rank.quiet)
                    rank.code = message.get("ended", rank.code)
                    rank.stopped = message.get("stopped", rank.stopped)
            except OSError:
                rank.link = None
        if now - self.pinged >= 1.0:
            self.pinged = now
            for rank in self.ranks:
                self._send(rank, ping=True)

    def _send(self, rank: _Rank, **message: Any) -> None:
        try:
            if rank.link is not None:
                rank.link.send(**message)
        except OSError:
            rank.link = None

    def _free_address(self) -> str:
        """For rank 0's TCP store. A new one each time: the former's port may not be free yet."""
        with socket.create_server(("", 0)) as server:
            return f"{self.host}:{server.getsockname()[1]}"


_LOST, _ERROR, _KILLED, _CRASHED, _HANG, _ASKED, _UNCONNECTED, _FAILED = range(8)
