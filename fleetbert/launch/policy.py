"""The policy after the end of a process, for ranks, servers and trainers."""

from __future__ import annotations

import enum
import signal
import time
from typing import Callable, NamedTuple, Sequence

from fleetbert.core.errors import NOT_CONNECTED, GateFailed, UserError

# Exit codes of a process.
_FINAL = (UserError.code, GateFailed.code)  # no reason to start it again
STOPPED = (143, 130, -signal.SIGTERM, -signal.SIGINT)  # someone asked it to
HUNG = 124  # of a job that hangs, as of timeout(1)

# Seconds.
GRACE = 1.0  # to learn whether the first failure heard of is only the echo of another
STOP_LIMIT = 60.0  # for processes that were asked to stop, to save what they have
RETRIES = 5  # in a row, of starts whose processes did not find each other


class Kind(enum.IntEnum):
    """The kind of a cause. Of several, the lowest is the real one, and leads to the others."""

    LOST = 0  # a supervisor, with its machine or its launcher
    ERROR = 1  # the user's
    ASKED = 2  # to stop
    SERVER = 3  # ended in any other way, without which trainers fail
    KILLED = 4
    CRASHED = 5
    HUNG = 6
    UNCONNECTED = 7
    FAILED = 8


class Cause(NamedTuple):
    """Why a job cannot go on."""

    kind: Kind
    text: str
    code: int  # exit status for the job to end with
    mendable: bool = True  # starting again may help
    process: str = ""  # its name, if it is the end of one


def cause_of(name: str, code: int, at: str = "", is_server: bool = False) -> Cause:
    """Return what the end of a process with `code` means: not 0, and negative for a signal. `at`
    describes how far the process was."""
    status = code if code >= 0 else 128 - code
    if code in STOPPED:
        kind = Kind.ASKED
        how = f"stopped ({_signal(code)})" if code < 0 else f"asked to stop (exit code {code})"
        how = f"was {how}"
    elif code == -signal.SIGKILL:
        kind, how = Kind.KILLED, f"was killed (SIGKILL, by someone or for want of memory){at}"
    elif code < 0:
        kind, how = Kind.CRASHED, f"crashed ({_signal(code)}){at}"
    elif code == NOT_CONNECTED:
        kind, how = Kind.UNCONNECTED, "could not connect to the others"
    elif code in _FINAL:
        kind, how = Kind.ERROR, f"ended with an error (exit code {code})"
    else:
        kind, how = Kind.FAILED, f"failed with exit code {code}{at}"
    if is_server and kind != Kind.ERROR:
        kind = Kind.SERVER
    return Cause(kind, f"{name} {how}", status, kind not in (Kind.ERROR, Kind.ASKED), name)


def _signal(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:  # a real-time signal
        return f"signal {-code}"


class Patience:
    """Waits until the real failure can be told from those that follow from it."""

    def __init__(self, stopping: float = GRACE):
        self.stopping = stopping  # seconds for the others to end after one was asked to stop
        self.since: float | None = None

    def real(self, causes: Sequence[Cause], all_ended: bool) -> Cause | None:
        """Return the real one of `causes`; None if there is none, or others may still follow."""
        if not causes:
            self.since = None
            return None
        now = time.monotonic()
        self.since = now if self.since is None else self.since
        lowest = min(causes, key=lambda cause: cause.kind)
        limit = self.stopping if lowest.kind == Kind.ASKED else GRACE
        return lowest if all_ended or now - self.since > limit else None


class Restarts:
    """Counts the restarts of a job, decides whether it restarts, and logs why.

    most: the limit of restarts. limit: the reason that is logged when none is left.
    """

    def __init__(self, most: int, limit: str, say: Callable[[str], None]):
        self.most, self.limit, self.say = most, limit, say
        self.used = 0
        self.retries = 0  # in a row

    def are_left(self, number: int = 1) -> bool:
        return self.used + number <= self.most

    def take(self, text: str, what: str) -> None:
        """Use a restart for `what`, because of `text`."""
        self.used += 1
        self.retries = 0
        self.say(f"{text}; starting {what} again, restart {self.used} of {self.most}")

    def start_again(self, cause: Cause) -> bool:
        """Return whether the whole job restarts. Failed connections are retried in addition."""
        why = ""
        if cause.mendable and cause.code == NOT_CONNECTED:
            if self.retries < RETRIES:
                self.retries += 1
                self.say(f"{cause.text}; trying all again, which is no restart")
                return True
            why = f"after {RETRIES} more tries: "
        elif cause.mendable:
            if self.are_left():
                self.take(cause.text, "all")
                return True
            why = f"{self.limit}: "
        self.say(f"{cause.text}; {why}the job ends with exit code {cause.code}")
        return False

    def say_done(self, more: str = "") -> None:
        if self.used:
            self.say(f"done after restarts: {self.used}{more}")
