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

# Three tenths of a processor that workers, at 4, keep busy.
NICENESS = 8
# Before it, where it may be left again, the scheduler's idle class: such a process runs only where
# nobody else would, and one that answers never waits for it. It is left as soon as that gives it
# less than this share of a processor: loading 20 tiny models took eleven minutes there on cores
# that others kept busy.
LEAST = 0.2
LOOK_SECONDS = 0.25
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
    done = threading.Event()

    def leave_idle_class() -> None:
        used = _processor_seconds(process)
        while not done.wait(LOOK_SECONDS):
            before, used = used, _processor_seconds(process)
            if used - before < LEAST * LOOK_SECONDS:
                _set_all(process, os.SCHED_OTHER, max(niceness, NICENESS))
                return

    _set_all(process, os.SCHED_IDLE, niceness)
    watch = threading.Thread(target=leave_idle_class, daemon=True)
    watch.start()
    try:
        yield
    finally:
        done.set()
        watch.join()
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


def _processor_seconds(process: int) -> float:
    """What a process has used; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
