"""Ending what a task awaits, and knowing why it was cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Callable, Iterator

from fleetbert.deploy.inference.messages import Failure


@contextlib.contextmanager
def cancelled_as(failure: Callable[[], Failure]) -> Iterator[Callable[[], None]]:
    """What is called to cancel the task that is inside: then `failure()` is raised there. Whoever
    else cancels it does so as ever."""
    task = asyncio.current_task()
    assert task is not None
    called = False

    def cancel() -> None:
        nonlocal called
        called = True
        task.cancel()

    try:
        yield cancel
    except asyncio.CancelledError:
        if called:
            raise failure() from None
        raise
