"""Work that must not take the processors from those who answer meanwhile."""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Callable, Iterator, TypeVar

Result = TypeVar("Result")

# A tenth of a processor that workers, at 4, keep busy. At 19 it would be a thirtieth: loading a
# version under full load takes minutes then.
NICENESS = 14
# For so long, where it may be left again, the scheduler's idle class before it: such a thread runs
# only where nobody else would, and one that answers never waits for it. Under full load it would
# not end.
IDLE_SECONDS = 30.0


def call(function: Callable[[], Result]) -> Result:
    """Call it at a low priority, in a thread of its own: only the privileged may raise a priority
    again, and what is made there (an engine) is to work at the usual one."""

    def slowly() -> Result:
        _lower()
        return function()

    with ThreadPoolExecutor(1) as executor:
        return executor.submit(slowly).result()


def may_return() -> bool:
    """Whether this process may raise a priority that it lowered."""

    def attempt() -> bool:
        thread = threading.get_native_id()
        former = os.getpriority(os.PRIO_PROCESS, thread)
        try:
            _set(thread, os.SCHED_IDLE, NICENESS)
            _set(thread, os.SCHED_OTHER, former)
            return True
        except OSError:
            return False

    with ThreadPoolExecutor(1) as executor:
        return executor.submit(attempt).result()


@contextlib.contextmanager
def lowered() -> Iterator[None]:
    """This thread at a low priority, and threads that begin meanwhile; `may_return` it must."""
    former = os.getpriority(os.PRIO_PROCESS, 0)
    enough = threading.Timer(IDLE_SECONDS, _set_all, (NICENESS,))
    enough.daemon = True
    enough.start()  # before this thread is lowered: it would inherit that
    _set(threading.get_native_id(), os.SCHED_IDLE, former)
    try:
        yield
    finally:
        enough.cancel()
        enough.join()
        _set_all(former)


def _set(thread: int, policy: int, niceness: int) -> None:
    """On Linux both are a thread's."""
    os.setpriority(os.PRIO_PROCESS, thread, niceness)
    os.sched_setscheduler(thread, policy, os.sched_param(0))


def _set_all(niceness: int) -> None:
    """Every thread of this process, in the usual class."""
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            _set(int(thread.name), os.SCHED_OTHER, niceness)


def _lower() -> None:
    """This thread; on Linux a priority is a thread's."""
    with contextlib.suppress(OSError):  # it is lower already
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
