"""Processes that work beside this one: those that fill the token cache and those that collect
batches.

They are started anew and import no Paddle. A fork would copy the locks of Paddle's threads as
they are at that moment. They do not outlive the process that started them, however it ends, and
leave Ctrl-C and SIGTERM to it.
"""

from __future__ import annotations

import os
import signal
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Callable

from fleetbert.compat import environment
from fleetbert.errors import UserError

LEFT_TO_PARENT = {signal.SIGINT, signal.SIGTERM}


class _Process(SpawnProcess):
    def start(self) -> None:
        former = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_PARENT)  # it inherits this
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, former)

    def terminate(self) -> None:
        """What an executor does to the others when one has died: they do not hear SIGTERM."""
        self.kill()


class _Context(SpawnContext):
    Process = _Process


def start(
    count: int, prepare: Callable[..., None] | None = None, *arguments: object
) -> ProcessPoolExecutor:
    """A ProcessPoolExecutor of `count` processes, in each of which `prepare(*arguments)` has run.

    To be used and closed by the thread that called this: they end with it. UserError where the
    system has no room for what they share.
    """
    try:
        return ProcessPoolExecutor(
            count,
            mp_context=_Context(),
            initializer=_begin,
            initargs=(os.getpid(), prepare, arguments),
        )
    except OSError as error:  # of their semaphores, which Linux keeps there
        raise UserError(
            f"/dev/shm: {error.strerror}, so that no process can be started beside this one; make "
            "room there (docker run --shm-size=64m)"
        ) from error


def _begin(parent: int, prepare: Callable[..., None] | None, arguments: tuple[object, ...]) -> None:
    environment.die_with_parent(parent)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    if prepare is not None:
        prepare(*arguments)
