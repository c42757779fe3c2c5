"""One process of a job: a rank, a server or a trainer."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import Callable, Sequence

import psutil

from fleetbert.compat import environment
from fleetbert.launch.policy import Cause, cause_of


class Process:
    """A process that leads its own process group, which ends with it."""

    def __init__(self, role: str, number: int):
        self.role, self.number, self.name = role, number, f"{role} {number}"
        self.restarted = 0  # how often it has been started again
        self.code: int | None = None  # of its end; negative: a signal
        self.popen: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self.popen is not None and self.code is None

    def start(
        self,
        command: list[str],
        environ: dict[str, str],
        output: tuple[int, int] | None = None,
        descriptors: Sequence[int] = (),
    ) -> None:
        """Start the process. With `output` (stdout, stderr) it reads nothing, and dies with this
        process. Without, it shares this process's streams, and has to end itself
        (`heartbeat.start`), because a process with threads must not run Python between fork and
        exec. OSError if the system has no room for it."""
        self.code, parent = None, os.getpid()
        out, err = output or (None, None)
        self.popen = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL if output else None,
            stdout=out,
            stderr=err,
            pass_fds=descriptors,
            start_new_session=True,
            preexec_fn=(lambda: environment.die_with_parent(parent)) if output else None,
        )

    def has_ended(self) -> bool:
        """Whether it has ended and `finish` is to be called."""
        if self.popen is None or self.code is not None:
            return False
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT  # its number stays its own until `finish`
        return os.waitid(os.P_PID, self.popen.pid, flags) is not None

    def is_stopped(self) -> bool:
        """Whether a signal such as SIGSTOP has stopped it."""
        with contextlib.suppress(psutil.NoSuchProcess):
            if self.running and self.popen is not None:
                return bool(psutil.Process(self.popen.pid).status() == psutil.STATUS_STOPPED)
        return False

    def ask(self, signum: int) -> None:
        """Send a signal to the process, but not to its children."""
        self._send(os.kill, signum)

    def kill(self) -> None:
        self._send(os.killpg, signal.SIGKILL)

    def _send(self, send: Callable[[int, int], None], signum: int) -> None:
        if self.running and self.popen is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                send(self.popen.pid, signum)

    def finish(self) -> None:
        """Kill the rest of its group, and note the exit code."""
        if self.running and self.popen is not None:
            self.kill()
            self.code = self.popen.wait()

    def cause(self) -> Cause:
        """Return what the end of the process means, after a failure."""
        return cause_of(self.name, self.code or 0, is_server=self.role == "server")
