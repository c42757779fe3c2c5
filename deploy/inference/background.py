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
        _lower()
        try:
            os.setpriority(os.PRIO_PROCESS, thread, former)
            return True
        except OSError:
            return False

    with ThreadPoolExecutor(1) as executor:
        return executor.submit(attempt).result()


@contextlib.contextmanager
def lowered() -> Iterator[None]:
    """This thread at a low priority, and threads that begin meanwhile; `may_return` it must."""
    former = os.getpriority(os.PRIO_PROCESS, 0)
    _lower()
    try:
        yield
    finally:
        for thread in Path("/proc/self/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(thread.name), former)


def _lower() -> None:
    """This thread; on Linux a priority is a thread's."""
    with contextlib.suppress(OSError):  # it is lower already
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
