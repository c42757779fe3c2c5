"""SIGTERM and Ctrl-C end a command with a sentence; a training saves its run after the step."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType
from typing import Iterator

from fleetbert.core.errors import Interrupted, Stopped

GOES_ON = "the same command goes on from there"


class _Request:
    received: int | None = None  # the signal that waits for the step to end
    steps = False  # steps are running
    remedy = GOES_ON


def expect(remedy: str = GOES_ON) -> None:
    """Install the handlers. While steps run, SIGTERM and Ctrl-C raise Stopped after the step is
    saved. At other times SIGTERM raises it at once. Then Ctrl-C raises KeyboardInterrupt, and so
    does a second Ctrl-C at any time. remedy: what Stopped's sentence ends with."""
    _Request.remedy = remedy
    signal.signal(signal.SIGTERM, _receive)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as in the background of a shell
        signal.signal(signal.SIGINT, _receive)


@contextlib.contextmanager
def expected_by_program(remedy: str) -> Iterator[None]:
    """Handle both as `expect` does while a program trains, unless it has handlers of its own; only
    its main thread can. remedy: what Stopped says instead of how a command goes on."""
    defaults = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    former = {number: signal.getsignal(number) for number in defaults}
    is_main = threading.current_thread() is threading.main_thread()
    ours = [number for number in defaults if is_main and former[number] is defaults[number]]
    _Request.remedy, of_command = remedy, _Request.remedy
    for number in ours:
        signal.signal(number, _receive)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, former[number])
        _Request.remedy = of_command


def _receive(number: int, _: FrameType | None) -> None:
    if _Request.steps:
        again = number == _Request.received == signal.SIGINT
        # A rank hears one Ctrl-C from several sides, and does not stop without the others.
        if not again or "PADDLE_TRAINER_ID" in os.environ:
            _Request.received = number
            return
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    resumes = _Request.remedy == GOES_ON
    raise stopped(number, "no step is lost" if resumes else "nothing is half written")


def stopped(number: int, what: str) -> Stopped:
    if number == signal.SIGINT:
        return Interrupted(f"Ctrl-C: {what}; {_Request.remedy}")
    return Stopped(f"SIGTERM: {what}; {_Request.remedy}")


def steps_run(running: bool) -> None:
    """Note that steps begin, or have ended."""
    _Request.steps, _Request.received = running, None


def received() -> int | None:
    """Return the signal that came since the steps began; None without one."""
    return _Request.received
