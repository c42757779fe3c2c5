"""One server or trainer."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

from fleetbert.compat import environment
from fleetbert.errors import NOT_CONNECTED, GateFailed, UserError

FINAL = (UserError.code, GateFailed.code)  # no reason to start again
STOPPED = (143, 130, -signal.SIGTERM, -signal.SIGINT)  # someone asked it to


class Process:
    """A server or trainer: leader of a group of its own that ends with it, and with us."""

    def __init__(self, role: str, number: int):
        self.role, self.number, self.name = role, number, f"{role} {number}"
        self.restarted = 0  # how often it has been started again
        self.code: int | None = None  # of its end; negative: a signal
        self.popen: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self.popen is not None and self.code is None

    def start(self, command: list[str], environ: dict[str, str], out: int, err: int) -> None:
        """OSError when the system has no room for another process."""
        self.code, parent = None, os.getpid()
        self.popen = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            preexec_fn=lambda: environment.die_with_parent(parent),
        )

    def has_ended(self) -> bool:
        """Whether it has ended and `finish` is to be called."""
        if self.popen is None or self.code is not None:
            return False
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT  # its number stays its own until `finish`
        return os.waitid(os.P_PID, self.popen.pid, flags) is not None

    def is_stopped(self) -> bool:
        """Whether a signal has stopped it until another lets it go on; on Linux."""
        if not self.running or self.popen is None:
            return False
        try:
            stat = Path(f"/proc/{self.popen.pid}/stat").read_text(errors="replace")
        except OSError:
            return False
        return stat.rpartition(") ")[2].startswith("T")  # behind the program's name

    def ask(self, signum: int) -> None:
        """Send it, and nothing that it started, a signal."""
        if self.running and self.popen is not None:
            self.popen.send_signal(signum)

    def kill(self) -> None:
        """Kill it and its group."""
        if self.running and self.popen is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.popen.pid, signal.SIGKILL)

    def finish(self) -> None:
        """Kill what is left of its group and note how it ended."""
        if self.running and self.popen is not None:
            self.kill()
            self.code = self.popen.wait()

    def status(self) -> int:
        """Its end as an exit status, as shells count it."""
        code = self.code or 0
        return code if code >= 0 else 128 - code

    def describe(self) -> str:
        """How it ended."""
        code = self.code or 0
        if code == -signal.SIGKILL:
            return f"{self.name} was killed (SIGKILL, by someone or for want of memory)"
        if code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:  # a real-time signal
                name = f"signal {-code}"
            verb = "was stopped" if code in STOPPED else "crashed"
            return f"{self.name} {verb} ({name})"
        if code in STOPPED:
            return f"{self.name} was asked to stop (exit code {code})"
        if code == NOT_CONNECTED:
            return f"{self.name} could not connect to the others"
        if code in FINAL:
            return f"{self.name} ended with an error (exit code {code})"
        return f"{self.name} failed with exit code {code}"
