"""Handles SIGTERM and Ctrl-C in a command that trains: the run is saved after the step and stops.

Only commands call `expect`. A program that calls `fleetbert.train` handles both itself.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

from fleetbert.core.errors import Interrupted, Stopped


class _Request:
    received: int | None = None  # the signal that waits for the step to end
    steps = False  # steps are running


def expect() -> None:
    """Install the handlers. While steps run, SIGTERM and Ctrl-C raise Stopped after the step is
    saved. At other times SIGTERM raises it at once. Then Ctrl-C raises KeyboardInterrupt, and so
    does a second Ctrl-C at any time."""
    signal.signal(signal.SIGTERM, _receive)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as in the background of a shell
        signal.signal(signal.SIGINT, _receive)


def _receive(number: int, _: FrameType | None) -> None:
    if _Request.steps:
        again = number == _Request.received == signal.SIGINT
        # A rank hears one Ctrl-C from several sides, and does not stop without the others.
        if not again or "PADDLE_TRAINER_ID" in os.environ:
            _Request.received = number
            return
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise stopped(number, "no step is lost; the same command goes on from there")


def stopped(number: int, what: str) -> Stopped:
    if number == signal.SIGINT:
        return Interrupted(f"Ctrl-C: {what}")
    return Stopped(f"SIGTERM: {what}")


def steps_run(running: bool) -> None:
    """Note that steps begin, or have ended."""
    _Request.steps, _Request.received = running, None


def received() -> int | None:
    """Return the signal that came since the steps began; None without one."""
    return _Request.received
