"""Supervises the servers and trainers of a parameter-server job.

Paddle's stock launcher starts nothing again, leaves ports and the shared folder to its user, and
keeps trainers waiting for 300 s when a server dies.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Iterator

from fleetbert.core.errors import UserError
from fleetbert.launch import reaper
from fleetbert.launch.cluster import Cluster
from fleetbert.launch.output import Output
from fleetbert.launch.policy import HUNG, STOP_LIMIT, STOPPED, Cause, Kind, Patience, Restarts
from fleetbert.launch.process import Process

# Seconds.
LEAVE_LIMIT = 5.0  # for servers to end by themselves after the last trainer
TERM_LIMIT = 2.0  # for servers to end when asked to
TOGETHER = "together"  # a file in FLEETBERT_RUN: no trainer can be started again alone


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
        self.command, self.folder, self.output = command, folder, output
        limit = f"--max_restart {restarts} allows no more"
        self.restarts = Restarts(restarts, limit, output.say)
        self.hang_timeout = hang_timeout  # seconds without progress, or 0: no limit
        self.counts = (("server", servers), ("trainer", trainers))
        self.signals: list[int] = []  # that ask the job to stop

    def run(self) -> int:
        with self._hearing():
            for start in itertools.count(1):
                cause = self._start_once(self.folder / str(start))
                if cause is None:
                    self.restarts.say_done()
                    return 0
                if not self.restarts.start_again(cause):
                    return cause.code
        raise AssertionError  # the count has no end

    @contextlib.contextmanager
    def _hearing(self) -> Iterator[None]:
        """Note signals. Once the job has ended, ignore them, because its exit code is known."""
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
            numbers.append(signal.SIGHUP)
        for number in numbers:
            signal.signal(number, lambda number, _: self.signals.append(number))
        try:
            yield
        finally:
            for number in numbers:
                signal.signal(number, signal.SIG_IGN)

    def _start_once(self, run: Path) -> Cause | None:
        """Run all processes until the last has ended; None if the job ended well."""
        run.mkdir()
        self.run_folder = run
        self.servers, self.trainers = (
            [Process(role, number) for number in range(count)] for role, count in self.counts
        )
        self.processes = [*self.servers, *self.trainers]
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
            reaper.kill(run)
            shutil.rmtree(run, ignore_errors=True)

    def _start(self, process: Process) -> None:
        logs = self.output.folder.resolve()
        environ = self.cluster.environ(process, self.run_folder, logs)
        try:
            descriptors = self.output.open(process.name, process is self.trainers[0])
            try:
                process.start(self.command, environ, descriptors)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
        except OSError as error:
            raise UserError(f"{process.name} cannot be started: {error.strerror}") from None

    def _finish(self, process: Process) -> None:
        process.finish()
        self.output.drain(process.name)

    def _look(self) -> None:
        """Pass output on for a moment, and note which processes have ended."""
        self.output.pump(0.05)
        for process in self.processes:
            if process.has_ended():
                self._finish(process)

    def _watch(self) -> Cause | None:
        patience = Patience()
        seen, since = self._progress(), time.monotonic()
        while True:
            self._look()
            if self.signals:
                return self._stop(self.signals[0])
            failed = [process for process in self.processes if process.code]
            if failed:
                all_ended = not any(process.running for process in self.processes)
                cause = patience.real([process.cause() for process in failed], all_ended)
                if cause is None:
                    continue
                if not self._restart_alone(failed, cause):
                    return self._end(cause)
                patience = Patience()
            elif all(trainer.code == 0 for trainer in self.trainers):
                return self._leave()
            now = self._progress()
            if now != seen:
                seen, since = now, time.monotonic()
            elif self.hang_timeout and time.monotonic() - since > self.hang_timeout:
                return self._hung()

    def _progress(self) -> tuple[int, set[tuple[str, int]]]:
        """Return what changes while any process makes progress: the number of its writes, and the
        files in FLEETBERT_RUN, which trainers write at each step, evaluation batch and barrier. (A
        process that waits looks like one that hangs.)"""
        files = set()
        with contextlib.suppress(FileNotFoundError):  # one was renamed just now, or all removed
            files = {(file.name, file.stat().st_mtime_ns) for file in os.scandir(self.run_folder)}
        return self.output.heard, files

    def _hung(self) -> Cause:
        names = [process.name for process in self.processes if process.is_stopped()]
        why = f"; {' and '.join(names)} {'are' if len(names) > 1 else 'is'} stopped (SIGSTOP)"
        text = (
            f"no process has written a line or done a step for {self.hang_timeout:g} s "
            f"(--hang_timeout): the job hangs{why if names else ''}"
        )
        return Cause(Kind.HUNG, text, HUNG)

    def _restart_alone(self, failed: list[Process], cause: Cause) -> bool:
        """Restart the trainers that failed, if the others can go on meanwhile."""
        if not (
            cause.kind in (Kind.KILLED, Kind.CRASHED, Kind.FAILED)
            and self.restarts.are_left(len(failed))
            and not any(server.code == 0 for server in self.servers)
            and self.run_folder.is_dir()  # which its processes may clear up at their end
            and not (self.run_folder / TOGETHER).exists()
        ):
            return False
        for process in failed:
            process.restarted += 1
            port = self.cluster.port(process)
            reaper.kill(self.run_folder, f"PADDLE_PORT={port}")  # what it started elsewhere
            self._show_tail(process.name)
            self.restarts.take(process.cause().text, "it alone")
            self._start(process)
        return True

    def _end(self, cause: Cause) -> Cause | None:
        if cause.kind == Kind.ASKED:
            if not any(trainer.running for trainer in self.trainers):
                return cause
            self.output.say(f"{cause.text}: asking the other trainers to stop")
            return self._stop(signal.SIGTERM)
        self._show_tail(cause.process)
        if cause.kind == Kind.ERROR:
            return cause._replace(text=f"{cause.text}, see {self.output.path(cause.process)}")
        if all(trainer.code == 0 for trainer in self.trainers):
            text = f"{cause.text}, after all trainers had ended well"
            return cause._replace(text=text, mendable=False)
        return cause

    def _show_tail(self, name: str) -> None:
        if name != self.trainers[0].name:  # whose lines are there already
            self.output.show_tail(name)

    def _leave(self) -> Cause | None:
        """End the servers after all trainers have ended well."""
        self._wait(self.servers, LEAVE_LIMIT)
        crashed = [server.cause() for server in self.servers if server.code]
        if crashed:
            return self._end(min(crashed))
        self._dismiss()
        return None

    def _dismiss(self) -> None:
        for server in self.servers:
            server.ask(signal.SIGTERM)
        self._wait(self.servers, TERM_LIMIT)

    def _stop(self, signum: int) -> Cause | None:
        """Ask the trainers to stop, and wait while they save a checkpoint."""
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
                self.signals = []
            if now - heard > STOP_LIMIT or signal.SIGINT in self.signals:
                break
        late = [trainer.name for trainer in self.trainers if trainer.running]
        stopped = Cause(Kind.ASKED, f"stopped by {name}", 128 + signum, False)
        if late:
            self.output.say(f"{' and '.join(late)} did not end: killed")
            return stopped
        self._dismiss()
        if all(trainer.code == 0 for trainer in self.trainers):
            return None
        well = (0, -signum, 128 + signum, *STOPPED)
        failed = [trainer.cause() for trainer in self.trainers if trainer.code not in well]
        if not failed:
            return stopped
        cause = min(failed)
        self._show_tail(cause.process)
        return cause._replace(text=f"stopped by {name}, when {cause.text}", mendable=False)

    def _wait(self, processes: list[Process], limit: float) -> None:
        """Wait for the processes to end, unless a signal comes."""
        until = time.monotonic() + limit
        while any(process.running for process in processes) and time.monotonic() < until:
            self._look()
            if self.signals:
                return
