"""Work that leaves the processors to those who answer."""

from __future__ import annotations

import os
import threading

import fake_core
import pytest

from fleetbert.deploy.inference.workers import priority

pytestmark = pytest.mark.skipif(
    not priority.may_return(), reason="this user may not raise a priority again"
)


def schedule(thread: int = 0) -> tuple[int, int]:
    return os.sched_getscheduler(thread), os.getpriority(os.PRIO_PROCESS, thread)


def test_threads_run_where_nobody_else_would_and_return(monkeypatch):
    monkeypatch.setattr(priority, "LOOK_SECONDS", 3600.0)  # on a busy machine it may get no turn
    former = schedule()
    stop = threading.Event()
    with priority.lowered(os.getpid()):
        assert schedule()[0] == os.SCHED_IDLE
        started = threading.Thread(target=stop.wait)
        started.start()
        assert schedule(started.native_id)[0] == os.SCHED_IDLE
    found = schedule(), schedule(started.native_id)
    stop.set()
    started.join()
    assert found == (former, former)


def test_work_that_gets_no_processor_gets_a_share(monkeypatch):
    """This process sleeps, which looks the same."""
    former = schedule()
    monkeypatch.setattr(priority, "LOOK_SECONDS", 0.01)
    with priority.lowered(os.getpid()):
        fake_core.wait_for(lambda: schedule() == (os.SCHED_OTHER, priority.NICENESS))
    assert schedule() == former


def test_whether_priorities_can_be_raised_is_asked_without_the_idle_class(monkeypatch):
    """A thread in it might wait for a processor, and the server for the thread."""
    policies = []
    monkeypatch.setattr(os, "sched_setscheduler", lambda *args: policies.append(args))
    former = schedule()
    assert priority.may_return.__wrapped__()
    assert not policies
    assert schedule() == former
