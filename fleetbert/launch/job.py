"""Watches the processes of a job and decides what follows from how one of them ended."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Iterator, NamedTuple

from fleetbert.errors import NOT_CONNECTED, UserError
from fleetbert.launch import remains
from fleetbert.launch.cluster import Cluster
from fleetbert.launch.output import Output
from fleetbert.launch.process import FINAL, STOPPED, Process
from fleetbert.launch.signs import Signs, stopped

# Seconds.
GRACE = 1.0  # to learn whether the first failure heard of is only the echo of another
STOP_LIMIT = 60.0  # for trainers that were asked to stop, to save what they have
LEAVE_LIMIT = 5.0  # for servers to end by themselves after the last trainer
TERM_LIMIT = 2.0  # for servers to end when asked to
ORPHAN_LIMIT = 300.0  # for trainers to end after a server left: as long as Paddle waits for one
TOGETHER = "together"  # a file in FLEETBERT_RUN: no trainer can be started again alone
RETRIES = 5  # of jobs whose processes did not find each other

_ERROR, _ASKED, _SERVER, _KILLED, _CRASHED, _UNCONNECTED, _FAILED = range(7)


class _End(NamedTuple):
    """How one start of the job ended."""

    code: int
    text: str = ""  # why, if not well
    again: bool = False  # starting the whole job again may help


class Job:
    """Servers and trainers that run `command`; `run` returns the job's exit code."""

    def __init__(
        self,
        command: list[str],
        servers: int,
        trainers: int,
        restarts: int,
        hang_timeout: float,
        folder: Path,
        output: Output,
    ):
        self.command, self.restarts, self.folder, self.output = command, restarts, folder, output
        self.hang_timeout = hang_timeout  # seconds without a sign of progress, or 0: no limit
        self.counts = {"server": servers, "trainer": trainers}
        self.used = 0  # restarts
        self.asked: list[int] = []  # signals that want an end

    def run(self) -> int:
        retries = starts = 0  # retries in a row
        with self._hearing():
            while True:
                starts, used = starts + 1, self.used
                end = self._start_once(self.folder / str(starts))
                retries = 0 if self.used > used else retries
                if not end.again:
                    if end.text:
                        self.output.say(f"{end.text}; the job ends with exit code {end.code}")
                    elif self.used:
                        self.output.say(f"done after restarts: {self.used}")
                    return end.code
                if end.code == NOT_CONNECTED and retries < RETRIES:
                    retries += 1
                    self.output.say(f"{end.text}; trying all again, which is no restart")
                elif end.code != NOT_CONNECTED and self.used < self.restarts:
                    self.used += 1
                    retries = 0
                    self.output.say(
                        f"{end.text}; starting all again, restart {self.used} of {self.restarts}"
                    )
                else:
                    tried = f"after {RETRIES} more tries" * (end.code == NOT_CONNECTED)
                    why = tried or f"--max_restart {self.restarts} allows no more"
                    self.output.say(f"{end.text}; {why}: the job ends with exit code {end.code}")
                    return end.code

    @contextlib.contextmanager
    def _hearing(self) -> Iterator[None]:
        """Signals are noted, and interrupt the wait for output. Once the job has ended, those that
        want an end are ignored: it is there, and its exit code is known."""
        self.wakeup, write = os.pipe()
        os.set_blocking(write, False)
        wanted = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
            wanted.append(signal.SIGHUP)
        for number in wanted:
            signal.signal(number, lambda number, _: self.asked.append(number))
        for number in (signal.SIGCHLD, signal.SIGWINCH):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        try:
            yield
        finally:
            for number in wanted:
                signal.signal(number, signal.SIG_IGN)
            signal.set_wakeup_fd(-1)
            os.close(self.wakeup)
            os.close(write)

    def _start_once(self, run: Path) -> _End:
        """All processes, from their start to the end of the last one."""
        run.mkdir()
        self.run_folder = run
        self.processes = [
            Process(role, number) for role, count in self.counts.items() for number in range(count)
        ]
        self.servers = [process for process in self.processes if process.role == "server"]
        self.trainers = [process for process in self.processes if process.role == "trainer"]
        self.cluster = Cluster(len(self.servers), len(self.trainers))
        self.output.note(
            f"{time.strftime('%Y-%m-%d %H:%M:%S')} servers {','.join(self.cluster.servers)} "
            f"trainers {','.join(self.cluster.trainers)}: {' '.join(self.command)}"
        )
        try:
            for process in self.processes:
                self._start(process)
            return self._watch()
        finally:
            for process in self.processes:
                process.kill()
            for process in self.processes:
                self._finish(process)
            self.cluster.close()
            remains.kill(run)
            shutil.rmtree(run, ignore_errors=True)

    def _start(self, process: Process) -> None:
        environ = self.cluster.environ(
            process.role,
            process.number,
            process.restarted,
            self.run_folder,
            self.output.folder.resolve(),
        )
        descriptors: tuple[int, ...] = ()
        try:
            descriptors = self.output.open(process.name, process is self.trainers[0])
            process.start(self.command, environ, *descriptors)
        except OSError as error:
            raise UserError(f"{process.name} cannot be started: {error.strerror}") from None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _finish(self, process: Process) -> None:
        process.finish()
        self.output.drain(process.name)

    def _look(self) -> None:
        """Pass output on, for a moment, and note who has ended."""
        self.output.pump(0.1, self.wakeup)
        for process in self.processes:
            if process.has_ended():
                self._finish(process)

    def _watch(self) -> _End:
        failing: float | None = None  # since when
        left: float | None = None  # since when a server is gone in peace
        signs = Signs(self.run_folder, self.output, self.hang_timeout)
        while True:
            self._look()
            now = time.monotonic()
            if self.asked:
                return self._stop(self.asked[0])
            failed = [process for process in self.processes if process.code]
            if failed:
                failing = failing or now
                running = any(process.running for process in self.processes)
                if running and now - failing < GRACE:
                    continue
                failing = None
                end = self._judge(failed)
                if end is not None:
                    return end
            elif all(trainer.code == 0 for trainer in self.trainers):
                return self._leave()
            gone = [server for server in self.servers if server.code == 0]
            left = (left or now) if gone else None
            if left is not None and now - left > ORPHAN_LIMIT:
                text = f"{gone[0].name} ended {ORPHAN_LIMIT:.0f} s ago, and trainers still run"
                return _End(1, text, again=True)
            if signs.missing():
                return self._hung()

    def _hung(self) -> _End:
        """No process goes on."""
        names = stopped(self.processes)
        why = f"; {' and '.join(names)} {'are' if len(names) > 1 else 'is'} stopped (SIGSTOP)"
        text = (
            f"no process has written a line or done a step for {self.hang_timeout:g} s "
            f"(--hang_timeout): the job hangs{why if names else ''}"
        )
        return _End(1, text, again=True)

    def _judge(self, failed: list[Process]) -> _End | None:
        """What the failures mean: the end of this start, or (None) restarts of trainers alone."""
        cause = min(failed, key=_rank)
        kind, text = _rank(cause)[0], cause.describe()
        if kind == _ASKED:
            if not any(trainer.running for trainer in self.trainers):
                return _End(cause.status(), text)
            self.output.say(f"{text}: asking the other trainers to stop")
            return self._stop(signal.SIGTERM)
        self._show_tail(cause)
        if kind == _ERROR:
            return _End(cause.status(), f"{text}, see {self.output.path(cause.name)}")
        if all(trainer.code == 0 for trainer in self.trainers):
            return _End(cause.status(), f"{text}, after all trainers had ended well")
        alone = (
            kind not in (_SERVER, _UNCONNECTED)
            and not any(server.code == 0 for server in self.servers)
            and self.run_folder.is_dir()  # which its processes may clear up at their end
            and not (self.run_folder / TOGETHER).exists()
        )
        if not alone or self.used + len(failed) > self.restarts:
            return _End(cause.status(), text, again=True)
        for process in failed:
            self.used += 1
            process.restarted += 1
            port = self.cluster.port(process.role, process.number)
            remains.kill(self.run_folder, f"PADDLE_PORT={port}")  # what it started elsewhere
            if process is not cause:
                self._show_tail(process)
            self.output.say(
                f"{process.describe()}; restart {self.used} of {self.restarts}, of it alone"
            )
            self._start(process)
        return None

    def _show_tail(self, process: Process) -> None:
        if process is not self.trainers[0]:  # whose lines are there already
            self.output.show_tail(process.name)

    def _leave(self) -> _End:
        """All trainers have ended well: the servers' work is done."""
        self._wait(self.servers, LEAVE_LIMIT)
        crashed = [server for server in self.servers if server.code]
        if crashed:
            return self._judge(crashed) or _End(0)
        self._dismiss()
        return _End(0)

    def _dismiss(self) -> None:
        """Have the servers end."""
        for server in self.servers:
            server.ask(signal.SIGTERM)
        self._wait(self.servers, TERM_LIMIT)

    def _stop(self, signum: int) -> _End:
        """Have the trainers end, which may take a while: they save what they have."""
        name = signal.Signals(signum).name
        again = "; Ctrl-C again ends them now" if signum == signal.SIGINT else ""
        self.output.say(f"{name}: waiting {STOP_LIMIT:.0f} s at most for the trainers{again}")
        for trainer in self.trainers:
            trainer.ask(signum)
        heard = time.monotonic()
        while any(trainer.running for trainer in self.trainers):
            self._look()
            now = time.monotonic()
            if now - heard < 1.0:  # a key pressed twice, a signal to the group and to us
                self.asked = []
            if now - heard > STOP_LIMIT or signal.SIGINT in self.asked:
                break
        late = [trainer.name for trainer in self.trainers if trainer.running]
        if late:
            self.output.say(f"{' and '.join(late)} did not end: killed")
            return _End(128 + signum, f"stopped by {name}")
        self._dismiss()
        if all(trainer.code == 0 for trainer in self.trainers):
            return _End(0)
        failed = [t for t in self.trainers if t.code not in (0, -signum, 128 + signum, *STOPPED)]
        if not failed:
            return _End(128 + signum, f"stopped by {name}")
        cause = min(failed, key=_rank)
        self._show_tail(cause)
        return _End(cause.status(), f"stopped by {name}, when {cause.describe()}")

    def _wait(self, processes: list[Process], limit: float) -> None:
        """For processes to end, unless a signal comes."""
        until = time.monotonic() + limit
        while any(process.running for process in processes) and time.monotonic() < until:
            self._look()
            if self.asked:
                return


def _rank(process: Process) -> tuple[int, int]:
    """Of several failures the lowest is the real one, the others follow from it."""
    code = process.code or 0
    if code in FINAL:
        kind = _ERROR
    elif process.role == "server":
        kind = _SERVER
    elif code in STOPPED:
        kind = _ASKED
    elif code == -signal.SIGKILL:
        kind = _KILLED
    elif code < 0:
        kind = _CRASHED
    elif code == NOT_CONNECTED:
        kind = _UNCONNECTED
    else:
        kind = _FAILED
    return kind, process.number
