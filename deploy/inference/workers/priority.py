"""Work that must not take the processors from those who answer meanwhile."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Callable, Iterator, TypeVar

Result = TypeVar("Result")

# A tenth of a processor that workers, at 4, keep busy. At 19 it would be a thirtieth: loading a
# version under full load takes minutes then.
NICENESS = 14
# For so long, where it may be left again, the scheduler's idle class before it: such a process runs
# only where nobody else would, and one that answers never waits for it. Under full load it would
# not end.
IDLE_SECONDS = 30.0
LOWEST = 19


def call(function: Callable[[], Result]) -> Result:
    """Call it at a low priority, in a thread of its own: only the privileged may raise a priority
    again, and what is made there (an engine) is to work at the usual one."""

    def slowly() -> Result:
        with contextlib.suppress(OSError):  # it is lower already
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        return function()

    with ThreadPoolExecutor(1) as executor:
        return executor.submit(slowly).result()


@functools.cache
def may_return() -> bool:
    """Whether this process may raise a priority that it lowered, its own or a child's."""

    def attempt() -> bool:
        thread = threading.get_native_id()
        former = os.getpriority(os.PRIO_PROCESS, thread)
        try:
            # Not the idle class: this waits for the thread, which would wait for a processor there.
            os.setpriority(os.PRIO_PROCESS, thread, former + 1)
            os.setpriority(os.PRIO_PROCESS, thread, former)
            return True
        except OSError:
            return False

    with ThreadPoolExecutor(1) as executor:
        return executor.submit(attempt).result()


@contextlib.contextmanager
def lowered(process: int) -> Iterator[None]:
    """A process at a low priority, and afterwards as before; `may_return` this one must."""
    niceness = os.getpriority(os.PRIO_PROCESS, process)
    _set_all(process, os.SCHED_IDLE, niceness)
    enough = threading.Timer(IDLE_SECONDS, _set_all, (process, os.SCHED_OTHER, NICENESS))
    enough.daemon = True
    enough.start()
    try:
        yield
    finally:
        enough.cancel()
        enough.join()
        _set_all(process, os.SCHED_OTHER, niceness)


def lower(process: int) -> None:
    """A process at the lowest priority from now on, if it still runs."""
    with contextlib.suppress(OSError):  # it is lower already
        _set_all(process, os.SCHED_OTHER, LOWEST)


def _set_all(process: int, policy: int, niceness: int) -> None:
    """Every thread of a process, if it still runs: on Linux both are a thread's."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.setpriority(os.PRIO_PROCESS, int(thread.name), niceness)
                os.sched_setscheduler(int(thread.name), policy, os.sched_param(0))
