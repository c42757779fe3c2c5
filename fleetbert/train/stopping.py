"""SIGTERM of a command that trains: between steps the run is saved, then it stops.

Only commands call `expect`. Where nobody did, as in a program that calls `fleetbert.train`, SIGTERM
is the program's own affair.
"""

from __future__ import annotations

import signal
from types import FrameType

from fleetbert.errors import Stopped


class _Request:
    heard = False  # SIGTERM came, and waits for the step to end
    steps = False  # steps are running


def expect() -> None:
    """From now on SIGTERM raises Stopped, while steps run when the step is done and saved."""
    signal.signal(signal.SIGTERM, _hear)


def _hear(_: int, __: FrameType | None) -> None:
    if not _Request.steps:
        raise Stopped("SIGTERM: no step is lost; the same command goes on from there")
    _Request.heard = True


def steps_run(running: bool) -> None:
    """Steps begin, or have ended."""
    _Request.steps, _Request.heard = running, False


def is_asked() -> bool:
    """Whether SIGTERM came since the steps began."""
    return _Request.heard
