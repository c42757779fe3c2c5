"""workers/pool.py, what of it needs no worker; test_core.py has the others."""

import os
from pathlib import Path

import pytest

from fleetbert.deploy.inference.workers.pool import COMPUTING, go_to


def processor() -> int:
    """Where this thread runs."""
    stat = Path("/proc/thread-self/stat").read_text()
    return int(stat.rpartition(")")[2].split()[36])


def test_a_thread_goes_where_it_is_sent_and_is_not_held_there():
    everywhere = os.sched_getaffinity(0)
    for number in [*everywhere, *everywhere]:
        go_to([number])
        assert processor() == number
        assert os.sched_getaffinity(0) == everywhere


def test_a_thread_does_not_go_where_a_worker_computes(monkeypatch):
    here = os.sched_getaffinity(0)
    if len(here) < 2:
        pytest.skip("one processor")
    one, other = sorted(here)[:2]
    moves = []  # where it is may change by itself

    def move(thread, processors, really=os.sched_setaffinity):
        moves.append(set(processors))
        really(thread, processors)

    monkeypatch.setattr(os, "sched_setaffinity", move)
    monkeypatch.setitem(COMPUTING, other, 1)  # another model's
    go_to([other])
    assert moves == []
    go_to([one, other])
    assert processor() == one
    assert moves == [{one}, here]
    monkeypatch.setitem(COMPUTING, other, 0)
    go_to([other])
    assert processor() == other
    assert moves[2:] == [{other}, here]


def test_a_thread_that_cannot_go_stays():
    everywhere = os.sched_getaffinity(0)
    go_to([])
    go_to([max(everywhere) + 1000])
    assert os.sched_getaffinity(0) == everywhere
