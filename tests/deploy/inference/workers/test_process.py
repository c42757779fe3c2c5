"""The processes of workers: on which processors, and those that are started early."""

from __future__ import annotations

import os

import psutil
import pytest
from running_core import light_workers, wait_for

from fleetbert.deploy.inference.settings import Engine
from fleetbert.deploy.inference.workers import process
from fleetbert.deploy.inference.workers.process import share_processors


@pytest.mark.parametrize(
    ("processors", "settings", "expected"),
    [
        (2, {}, [(0,), (1,)]),
        (20, {}, [(2 * n, 2 * n + 1) for n in range(8)]),  # no more than eight, with threads
        (8, {"workers": 3}, [(0, 1), (2, 3), (4, 5)]),
        (8, {"threads": 4}, [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (2, {"threads": 4}, [()]),  # more threads than there are: not pinned
        (2, {"workers": 4}, [(), (), (), ()]),
        (2, {"pin": False}, [(), ()]),
        (4, {"device": "gpu"}, [(0, 1, 2, 3)]),
    ],
)
def test_each_worker_has_processors_of_its_own(monkeypatch, processors, settings, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)))
    shares, threads = share_processors(Engine(**settings))
    assert list(shares) == expected
    assert all(len(share) in (0, threads) for share in shares)


def end(*started):
    for one in started:
        one.process.kill()
        one.process.wait(60)
        one.socket.close()


@pytest.fixture
def early():
    """Two that were started early."""
    with light_workers():
        process.start_early(Engine(workers=2, threads=1, pin=False))
        started = list(process.EARLY)
        yield started
    end(*started)


def test_workers_that_were_started_early_are_taken_first_and_once(early):
    taken = [process.start((), 1) for _ in range(3)]
    end(taken[2])
    assert taken[:2] == early
    assert psutil.Process(early[0].process.pid).environ().items() >= process.HUGE_PAGES.items()
    assert taken[2].process.pid not in [one.process.pid for one in early]


def test_only_one_that_was_started_for_the_same_is_taken(early):
    [place] = sorted(os.sched_getaffinity(0))[:1]
    others = [process.start((place,), 1), process.start((), 2)]
    end(*others)
    assert early == process.EARLY


def test_one_that_has_ended_is_not_taken(early):
    early[0].process.kill()
    early[0].process.wait(60)
    other = process.start((), 1)
    end(other)
    assert other.process.pid not in [one.process.pid for one in early]
    assert early[1:] == process.EARLY


def test_early_workers_import_paddle_before_they_are_told_what_to_open(monkeypatch):
    monkeypatch.setattr(process, "EARLY", [])
    process.start_early(Engine(workers=1, threads=1, pin=False))
    [early], late = process.EARLY, process.start((), 2)  # as many threads as the early one has not
    try:
        wait_for(lambda: holds_paddle(early), "Paddle in an early worker")
        assert not holds_paddle(late)
    finally:
        end(early, late)


def holds_paddle(started: process.Started) -> bool:
    found = psutil.Process(started.process.pid)
    return any("libpaddle" in one.path for one in found.memory_maps())
