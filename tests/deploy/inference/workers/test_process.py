"""The processes of workers: on which processors, and how they are forked."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import psutil
import pytest
import shapes
from running_core import DEADLINE, gone, running, wait_for
from tiny_bert import export, make_network

from fleetbert.core.device import CPU
from fleetbert.deploy.inference.settings import Engine
from fleetbert.deploy.inference.workers import connection, fork_server, frames, process
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


@pytest.fixture
def forking(monkeypatch):
    """A server's process that forks workers, started early; no worker outlives the test."""
    monkeypatch.setattr(process, "forking", None)
    monkeypatch.setattr(fork_server, "ASK_SECONDS", DEADLINE)  # importing Paddle takes so long
    process.start_early(Engine(workers=2, threads=1))
    former = workers()
    yield process.forking
    for one in workers() - former:
        one.kill()
        one.wait(60)
    process.forking.process.kill()
    process.forking.process.wait(60)


def workers() -> set[psutil.Process]:
    """Those that are children of this process; new ones have their parent's name for a moment."""
    names = ("fleetbert-work", fork_server.NAME)
    others = {child for child in psutil.Process().children() if child.name() in names}
    return {child for child in others if child.pid != process.forking.process.pid}


def start(*processors: int) -> process.Started:
    return asyncio.run(process.start(processors, 1))


def end(*started: process.Started) -> list[int]:
    """Their exit codes."""
    for one in started:
        one.process.kill()
        one.socket.close()
    return [one.process.wait(60) for one in started]


@pytest.mark.slow
def test_workers_are_forked_with_paddle_as_children_that_can_be_waited_for(forking, capfd):
    [place] = sorted(os.sched_getaffinity(0))[:1]
    pinned, free = start(place), start()
    found = [psutil.Process(one.process.pid) for one in (pinned, free)]
    assert [one.ppid() for one in found] == [os.getpid()] * 2
    # A worker is known before it has given itself a name and its processors.
    wait_for(lambda: all(one.name() == "fleetbert-work" for one in found), "the workers' names")
    wait_for(lambda: found[0].cpu_affinity() == [place], "the worker's processor")
    assert found[1].cpu_affinity() == sorted(os.sched_getaffinity(0))
    assert all("libpaddle" in str(one.memory_maps()) for one in found)
    assert found[0].environ().items() >= process.HUGE_PAGES.items()
    with pytest.raises(subprocess.TimeoutExpired):
        pinned.process.wait(0.05)
    assert pinned.process.poll() is None
    free.socket.close()  # as where it is no longer needed
    assert free.process.wait(60) == 0
    assert end(pinned) == [-signal.SIGKILL]
    assert not any(one.is_running() for one in found)  # nor zombies


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["float32", "int8-static"])
def test_a_worker_forks_another_with_what_it_has_opened(forking, tmp_path, tiny_bundle, variant):
    """The files are gone then. Both answer alike, and the second outlives the first."""
    bundle = shapes.add_int8_and_early_exit(tiny_bundle, tmp_path).root
    [place] = sorted(os.sched_getaffinity(0))[:1]
    ids = [np.arange(2, 9), np.arange(2, 40)]
    head = {"do": "run", "variant": variant, "batch_tokens": 64, "speeds": None}
    frame = frames.pack_texts(head, ids, [7, 38])

    words = {"model": "m", "bundle": bundle, "variant": variant, "device": CPU, "threads": 1}
    words.update(lengths=(), pad_id=0, batch_tokens=64, hang_seconds=10.0)

    async def answers_of(worker: connection.Worker) -> bytes:
        return (await worker.ask(frame, DEADLINE))[1]

    async def fork_and_compare() -> None:
        plan = connection.Plan(**words, processors=((), (place,)))
        first = await connection.Worker.start((), 1)
        await first.open(plan, variant, gently=False)
        expected = await answers_of(first)
        shutil.rmtree(bundle)
        forks = [first.fork((place,)), first.fork(())]
        second, third = await asyncio.gather(*forks)
        await second.open(plan, variant, gently=False)
        process = psutil.Process(second.process.pid)
        assert (process.ppid(), process.cpu_affinity()) == (os.getpid(), [place])
        assert await answers_of(second) == await answers_of(first) == expected
        first.kill("test")
        await first.lost
        assert await answers_of(second) == await answers_of(third) == expected
        for worker in (first, second, third):
            await worker.close()
        assert not process.is_running()

    asyncio.run(fork_and_compare())


@pytest.mark.slow
def test_a_worker_that_replaces_another_shares_the_weights(forking, tmp_path, tiny_vocab):
    export(tmp_path / "m" / "1", make_network(positions=400_000), tiny_vocab)
    weights = 4 * 64 * 400_000  # bytes of the positions' embeddings
    with running(tmp_path, engine={"workers": 2, "hang_seconds": 120}) as core:
        pool = core.scheduler("m").pool
        wait_for(lambda: not pool._warmers, "warmth")
        lost, left = core.workers("m")
        os.kill(lost, signal.SIGKILL)
        wait_for(lambda: gone(lost) and len(core.workers("m")) == 2, "another worker")
        wait_for(lambda: not pool._warmers, "warmth")
        assert left in core.workers("m")
        for pid in core.workers("m"):
            assert private_memory(pid) < weights


def private_memory(pid: int) -> int:
    """Bytes that a process shares with no other."""
    fields = Path(f"/proc/{pid}/smaps_rollup").read_text().split()
    kinds = ("Private_Clean:", "Private_Dirty:")
    return sum(1024 * int(fields[fields.index(kind) + 1]) for kind in kinds)


@pytest.mark.slow
def test_the_process_that_forks_is_started_again_where_it_has_ended(forking):
    former = forking.process.pid
    forking.process.kill()
    forking.process.wait(60)
    one = start()
    assert psutil.Process(forking.process.pid).name() == fork_server.NAME
    assert forking.process.pid != former
    end(one)


@pytest.mark.slow
def test_it_refuses_while_it_cannot_and_workers_end_with_what_awaited_them(forking, monkeypatch):
    former = workers()
    with monkeypatch.context() as patch:
        patch.setattr(forking, "_start", lambda _: subprocess.Popen(["false"]))
        forking.process.kill()
        forking.process.wait(60)
        with pytest.raises(OSError):
            start()

    async def cancel() -> None:
        coming = asyncio.ensure_future(process.start((), 1))
        await asyncio.sleep(0.05)
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)

    asyncio.run(cancel())
    wait_for(lambda: not workers() - former, "no worker that nobody knows")
