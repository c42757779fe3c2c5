"""SIGTERM and Ctrl-C of a command that trains: between steps the run is saved, then it stops.

Only commands call `expect`. Where nobody did, as in a program that calls `fleetbert.train`, both
are the program's own affair.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

from fleetbert.core.errors import Interrupted, Stopped


class _Request:
    heard: int | None = None  # the signal that came, and waits for the step to end
    steps = False  # steps are running


def expect() -> None:
    """From now on SIGTERM and Ctrl-C raise Stopped while steps run: when the step is done and
    saved. At other times SIGTERM raises it at once, and Ctrl-C, as a second one always does,
    KeyboardInterrupt."""
    signal.signal(signal.SIGTERM, _hear)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as in the background of a shell
        signal.signal(signal.SIGINT, _hear)


def _hear(number: int, _: FrameType | None) -> None:
    if _Request.steps:
        again = number == _Request.heard == signal.SIGINT
        # A rank hears one Ctrl-C from several sides, and does not stop without the others.
        if not again or "PADDLE_TRAINER_ID" in os.environ:
            _Request.heard = number
            return
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise stopped(number, "no step is lost; the same command goes on from there")


def stopped(number: int, what: str) -> Stopped:
    if number == signal.SIGINT:
        return Interrupted(f"Ctrl-C: {what}")
    return Stopped(f"SIGTERM: {what}")


def steps_run(running: bool) -> None:
    """Steps begin, or have ended."""
    _Request.steps, _Request.heard = running, None


def asked() -> int | None:
    """The signal that came since the steps began, if one did."""
    return _Request.heard
