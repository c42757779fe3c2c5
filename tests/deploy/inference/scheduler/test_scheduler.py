"""Questions to worker processes: what they answer, and what happens when they are killed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import time
from dataclasses import replace

import light
import numpy as np
import pytest
import uvloop
from light import make_texts
from running_core import gather, gone, light_workers, running, sample, wait_for
from tiny_bert import LABELS

from fleetbert import bundle as bundles
from fleetbert.core.reading import Reading
from fleetbert.data import tokenizers, windows
from fleetbert.deploy.inference.messages import Failure, Reason, Request
from fleetbert.deploy.inference.settings import Batching, Engine
from fleetbert.deploy.inference.workers.connection import Worker
from fleetbert.deploy.inference.workers.frames import INT, take

MODEL = "tiny"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return light.make_bundle(tmp_path_factory.mktemp("models") / MODEL / "1")


@pytest.fixture(scope="module")
def core(bundle):
    """A core with one model on two workers."""
    batching = {"batch_tokens": 256, "queue_tokens": 20_000}
    engine = {"workers": 2, "hang_seconds": 120}
    policy = {"variant": "float32", "aliases": {"canary": 2}}
    models = bundle.parents[1]
    with light_workers(), running(models, engine=engine, batching=batching, default=policy) as core:
        yield core


@pytest.fixture
def both(core):
    """The core when both workers can answer, and are warm."""
    wait_for(lambda: len(core.workers(MODEL)) == 2, "two workers")
    wait_for(lambda: not core.scheduler(MODEL).pool._warmers, "warmth")
    return core


@pytest.fixture(scope="module")
def encode(bundle):
    """A function from texts to their encodings."""
    tokenizer = tokenizers.open(bundles.read(bundle))
    return lambda texts: tokenizer.encode(texts, None, light.MAX_LENGTH)


def restarts(cause: str) -> float:
    return sample("fleetbert_worker_restarts_total", model=MODEL, cause=cause)


def send_all(pids: list[int], number: int) -> None:
    for pid in pids:
        os.kill(pid, number)


class EarlyAlarms:
    """An event loop whose alarms come a millisecond early, as uvloop's may."""

    def __init__(self, loop):
        self._loop = loop

    def __getattr__(self, name):
        return getattr(self._loop, name)

    def call_at(self, when, callback):
        return self._loop.call_at(when - 0.001, callback)


def test_a_text_that_waits_for_others_goes_though_its_alarm_comes_early(both):
    scheduler = both.scheduler(MODEL)

    async def ask():
        loop, scheduler._loop = scheduler._loop, EarlyAlarms(scheduler._loop)
        try:
            for _ in range(5):
                scheduler.queue._here = 20.0  # others are expected
                await asyncio.wait_for(both.answer(Request(MODEL, texts=["word1"])), 20)
        finally:
            scheduler._loop = loop

    both.call(ask())


def test_windows_of_a_long_text_are_one_text(tmp_path):
    """Their mean is told, in one row; a text that the queue cannot hold is refused."""
    reading = Reading(light.MAX_LENGTH, "windows", 16)
    path = light.make_bundle(tmp_path / MODEL / "1", reading=reading)
    opened = bundles.read(path)
    texts = [*make_texts(3, seed=3, longest=25), " ".join(make_texts(6, seed=4, longest=100))]
    whole = tokenizers.open(opened).encode(texts, None, 10_000)
    parameters = light.parameters(path)
    plan = windows.windows(len(whole.ids[3]) - 2, light.MAX_LENGTH - 2, 16)
    assert len(plan) > 2
    first, *inside, last = whole.ids[3].tolist()
    rows = [[first, *inside[begin:end], last] for begin, end in plan]
    logits = [light.logits_of(parameters, row, len(row)) for row in rows]
    policy = {"variant": "float32"}
    batching = {"batch_tokens": 64, "queue_tokens": 2000}
    engine = {"workers": 2, "hang_seconds": 120}
    with light_workers(), running(
        tmp_path, engine=engine, batching=batching, default=policy
    ) as core:
        reply = core.ask(model=MODEL, texts=texts)
        assert (reply.size, reply.truncated, reply.tokens) == (4, 0, int(whole.lengths.sum()))
        np.testing.assert_allclose(
            reply.outputs["logits"][:3], light.logits(path, texts[:3]), atol=1e-5
        )
        np.testing.assert_allclose(reply.outputs["logits"][3], np.mean(logits, axis=0), atol=1e-5)
        with pytest.raises(Failure, match="the server's queue holds 2000") as failure:
            core.ask(model=MODEL, texts=["word1 " * 100_000])
        assert failure.value.reason == Reason.TOO_LARGE


def test_token_ids_are_answered_like_their_texts(both, encode):
    texts = make_texts(5, seed=2, longest=50)
    encodings = encode(texts)
    firsts = encodings.first_lengths.tolist()
    reply = both.ask(model=MODEL, ids=encodings.ids, first_lengths=firsts)
    np.testing.assert_allclose(
        reply.outputs["logits"], both.ask(model=MODEL, texts=texts).outputs["logits"], atol=1e-5
    )
    other = both.ask(model=MODEL, ids=encodings.ids, first_lengths=[2] * 5)
    assert np.abs(other.outputs["logits"] - reply.outputs["logits"]).max() > 0.01


@pytest.mark.parametrize(
    ("words", "reason", "message"),
    [
        ({"texts": ["\ud800"]}, Reason.BAD_REQUEST, "surrogate"),
        ({"texts": ["a"] * 10_000}, Reason.TOO_LARGE, "send fewer texts"),
        ({"texts": ["a"], "version": "2"}, Reason.NOT_FOUND, "no version '2'; it has: 1"),
        ({"texts": ["a"], "version": "canary"}, Reason.NOT_FOUND, "no version 'canary'"),
        ({"texts": ["a"], "version": "../1"}, Reason.NOT_FOUND, "no version '../1'"),
        ({"texts": ["a"], "model": "../tiny"}, Reason.NOT_FOUND, "there are: tiny"),
        ({"texts": ["word1"], "timeout": 1e-9}, Reason.DEADLINE, "timeout"),
    ],
)
def test_what_cannot_be_answered_says_why(both, words, reason, message):
    failure = both.failure(**{"model": MODEL, **words})
    assert failure.reason is reason
    assert re.search(message, str(failure)), str(failure)


def test_a_cancelled_question_costs_nothing_any_more(both):
    queue = both.scheduler(MODEL).queue
    texts = make_texts(200, seed=3, longest=60)

    async def ask_and_go():
        before = sample("fleetbert_tokens_total", model=MODEL, version="1")
        task = asyncio.ensure_future(both.answer(Request(MODEL, texts=texts)))
        while not queue.tokens:
            await asyncio.sleep(0)
        task.cancel()
        [result] = await gather(task)
        assert isinstance(result, asyncio.CancelledError)
        assert queue.tokens == len(queue) == 0
        await both.answer(Request(MODEL, texts=["word1"]))
        return sample("fleetbert_tokens_total", model=MODEL, version="1") - before

    assert both.call(ask_and_go()) < 60 * 200 / 4


def test_questions_in_a_killed_worker_are_answered_by_another(both, bundle):
    texts = make_texts(200, seed=5)
    before = restarts("crash")
    busy = both.workers(MODEL)
    pool = both.scheduler(MODEL).pool

    async def ask_and_kill():
        os.kill(busy[0], signal.SIGSTOP)
        task = asyncio.ensure_future(both.answer(Request(MODEL, texts=texts)))
        while pool.free:  # until both work
            await asyncio.sleep(0)
        os.kill(busy[0], signal.SIGKILL)
        return await task

    reply = both.call(ask_and_kill())
    np.testing.assert_allclose(reply.outputs["logits"], light.logits(bundle, texts), atol=1e-5)
    wait_for(lambda: len(both.workers(MODEL)) == 2, "a new worker")
    assert restarts("crash") == before + 1
    assert gone(busy[0])
    assert busy[1] in both.workers(MODEL)


def test_new_workers_are_warmed_one_at_a_time_while_the_others_answer(both, monkeypatch):
    pool = both.scheduler(MODEL).pool
    warmed, now, most = {}, set(), 0

    async def note(self, frame, timeout, ask=Worker.ask):
        nonlocal most
        [(head, _)] = take(bytearray(frame))
        if head["do"] != "warm":
            return await ask(self, frame, timeout)
        warmed.setdefault(self.process.pid, []).extend(length for _, length in head["batches"])
        assert self not in pool.free
        now.add(self)
        most = max(most, len(now))
        await asyncio.sleep(0.01)  # long enough for both to be at it
        try:
            return await ask(self, frame, timeout)
        finally:
            now.remove(self)

    monkeypatch.setattr(Worker, "ask", note)
    old = set(both.workers(MODEL))
    send_all(old, signal.SIGKILL)
    wait_for(lambda: len(set(both.workers(MODEL)) - old) == 2, "new workers")
    for _ in range(20):
        assert both.ask(model=MODEL, texts=["word1"]).outputs["label"][0] in LABELS
    wait_for(lambda: not pool._warmers, "warmth")
    assert warmed == {pid: list(pool.plan.lengths) for pid in both.workers(MODEL)}
    assert most == 1
    assert both.ask(model=MODEL, texts=["word1"]).outputs["label"][0] in LABELS


def test_a_start_that_is_cancelled_leaves_no_process(monkeypatch):
    started = []

    def start(*arguments, really=subprocess.Popen, **options):
        started.append(really(*arguments, **options))
        return started[-1]

    async def cancel():
        task = asyncio.ensure_future(Worker.start([], 1))
        await asyncio.sleep(0)  # until it waits for the connection
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    monkeypatch.setattr(subprocess, "Popen", start)
    with light_workers():
        uvloop.run(cancel())
    [process] = started
    assert process.wait(60) == -signal.SIGKILL


def test_a_worker_that_hangs_is_killed_and_its_texts_answered(both, bundle, monkeypatch):
    # Within the timeout of requests that name none: the defaults leave the other worker time.
    assert 2 * Engine().hang_seconds < Batching().timeout_ms / 1000
    pool = both.scheduler(MODEL).pool
    monkeypatch.setattr(pool, "plan", replace(pool.plan, hang_seconds=1.0))
    texts = make_texts(100, seed=7)
    before = restarts("hang")
    stopped = both.workers(MODEL)[0]
    os.kill(stopped, signal.SIGSTOP)
    reply = both.ask(model=MODEL, texts=texts)
    np.testing.assert_allclose(reply.outputs["logits"], light.logits(bundle, texts), atol=1e-5)
    assert restarts("hang") == before + 1
    assert gone(stopped)


def test_a_timeout_counts_while_every_worker_computes(both):
    pids = both.workers(MODEL)

    async def ask(timeout):
        return await both.answer(Request(MODEL, texts=["word1"], timeout=timeout))

    async def ask_all():
        patient = []
        for _ in range(3):  # the last has to wait
            patient.append(asyncio.ensure_future(ask(60.0)))
            await asyncio.sleep(0.1)
        with pytest.raises(Failure, match="timeout has passed"):
            await asyncio.wait_for(ask(0.2), 5.0)
        assert not any(task.done() for task in patient)
        send_all(pids, signal.SIGCONT)
        return await asyncio.gather(*patient)

    send_all(pids, signal.SIGSTOP)
    try:
        replies = both.call(ask_all())
    finally:
        send_all(pids, signal.SIGCONT)
    assert [len(reply.outputs["label"]) for reply in replies] == [1, 1, 1]
    assert both.workers(MODEL) == pids


def test_a_worker_of_a_slow_model_is_given_three_times_what_its_batches_take(both, monkeypatch):
    scheduler = both.scheduler(MODEL)
    both.ask(model=MODEL, texts=["word1"])  # a first batch, which is measured
    monkeypatch.setattr(scheduler.pool, "plan", replace(scheduler.pool.plan, hang_seconds=1e-6))
    monkeypatch.setattr(scheduler.queue, "speed", 1e-3)
    pids = both.workers(MODEL)
    assert both.ask(model=MODEL, texts=["word1"]).outputs["label"][0] in LABELS
    assert both.workers(MODEL) == pids
    monkeypatch.setattr(scheduler.queue, "speed", 1e9)
    send_all(pids, signal.SIGSTOP)  # or one may answer before the loop looks at its clock
    with pytest.raises(Failure, match=r"lost \(hang"):
        both.ask(model=MODEL, texts=["word1"])


def test_a_pause_of_the_whole_machine_costs_no_worker(both, monkeypatch):
    pool = both.scheduler(MODEL).pool
    monkeypatch.setattr(pool, "plan", replace(pool.plan, hang_seconds=5.0))
    pids = both.workers(MODEL)

    async def ask_and_be_paused():
        send_all(pids, signal.SIGSTOP)
        answer = asyncio.ensure_future(both.answer(Request(MODEL, texts=["word1"])))
        await asyncio.sleep(0.2)  # a worker has it
        time.sleep(8)
        send_all(pids, signal.SIGCONT)
        return await answer

    try:
        assert both.call(ask_and_be_paused()).outputs["label"][0] in LABELS
    finally:
        send_all(pids, signal.SIGCONT)
    assert both.workers(MODEL) == pids


def test_a_text_that_kills_workers_is_given_up_and_its_neighbours_are_answered(
    both, encode, monkeypatch
):
    ids = encode(["word77 word78 word79"]).ids[0]
    poison = ids[1:4].astype(INT).tobytes()
    ask, killed = Worker.ask, []

    async def ask_or_die(self, frame, timeout):
        if poison in frame:
            killed.append(self.process.pid)
            self.process.send_signal(signal.SIGKILL)
        return await ask(self, frame, timeout)

    monkeypatch.setattr(Worker, "ask", ask_or_die)
    good = [f"word{number} word1" for number in range(20)]

    async def ask_all():
        requests = [Request(MODEL, texts=[text]) for text in good]
        requests.insert(10, Request(MODEL, texts=["word77 word78 word79"]))
        return await gather(*map(both.answer, requests))

    results = both.call(ask_all())
    failure = results.pop(10)
    assert isinstance(failure, Failure)
    assert failure.reason is Reason.UNAVAILABLE
    assert len(killed) == 2
    assert [result for result in results if isinstance(result, BaseException)] == []
