"""A real run of `bench serve` and the parts of its clients."""

from __future__ import annotations

import asyncio
import math
import time

import fake_core
import numpy as np
import pytest
import uvloop

from fleetbert.bench import serve, serve_client
from fleetbert.core.errors import UserError
from fleetbert.tasks.metrics import softmax

TEXTS = ["good", "bad bad", "无 good good", ".", "x" * 20]


@pytest.mark.slow
def test_all_ways_are_measured_and_answer_alike(tiny_bundle, texts, measured):
    words = ["serve", "--bundle", tiny_bundle, "--data", texts, "--variant", "float32"]
    words += ["--rounds", 1, "--seconds", 1, "--warm", 1, "--connections", 4, "--threads", 1]
    report, out = measured(*words, "--markdown", "--sizes", "1,8")
    assert next(iter(report["engines"])) == serve.OFFLINE and len(report["engines"]) == 5
    assert report["variant"] == "float32" and report["arguments"]["connections"] == 4
    for name, found in report["engines"].items():
        assert f"| {name} | " in out
        assert found["texts_per_s"] > 0
        assert found["cpu_ms_per_text"] > 0 and found["peak_mb"] > 0
        if name != serve.OFFLINE:
            assert found["failed"] == 0 and found["client_processors"] > 0
            assert 0 < found["full_p50_ms"] <= found["full_p99_ms"]
    differences = [note for note in report["notes"] if "probabilities within" in note]
    assert len(differences) == 2
    for note in differences:
        assert float(note.split()[-3]) < 1e-4


def load(server, **command):
    whole = {"protocol": "http", "address": server.http, "texts_per_request": 2, **command}
    return asyncio.run(serve_client._load(whole, TEXTS))


@pytest.fixture(scope="module")
def server():
    with fake_core.serve() as served:
        yield served


@pytest.fixture(autouse=True)
def model(monkeypatch):
    monkeypatch.setattr(serve_client, "MODEL", "sst")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_clients_read_scores(server, tmp_path, protocol):
    address = getattr(server, protocol)
    path = tmp_path / "scores.npy"
    load(server, connections=1, save=str(path), protocol=protocol, address=address)
    expected = softmax(fake_core.logits_of(TEXTS))
    np.testing.assert_allclose(np.load(path), expected, atol=1e-6)


def test_closed_loop_and_paced(server):
    full = load(server, connections=3, seconds=1.0)
    assert full["requests"] > 10 and full["failed"] == 0
    assert full["requests"] < full["texts"] <= 2 * full["requests"]
    assert 0 < full["p50_ms"] <= full["p99_ms"]
    before = len(server.core.requests)
    paced = load(server, connections=3, seconds=1.0, rate=12.0)
    asked = len(server.core.requests) - before
    assert asked <= 12 and paced["requests"] <= asked
    # so slow that most connections have no turn in that time
    slow = load(server, connections=64, seconds=1.0, rate=2.0)
    assert 1 <= slow["requests"] <= 2


class Slow:
    """A server that takes 0.2 s for each answer, one connection's after another's."""

    free = 0.0

    async def ask(self, request):
        now = time.perf_counter()
        Slow.free = max(Slow.free, now) + 0.2
        await asyncio.sleep(Slow.free - now)
        return b""


def test_answers_that_come_late_count_and_so_does_the_time_until_then():
    async def ask():
        run = serve_client.Load([b""], 0.5, None)
        await run.run([Slow() for _ in range(4)])
        return run

    run = asyncio.run(ask())
    assert len(run.latencies) == len(run.answered) == 6  # 2 within 0.5 s, and the 4 on their way
    # No upper bound: the machine may be busy.
    assert run.seconds >= 6 * 0.2 - 0.01


class Busy:
    """A server that is asked in the clients' own process, and takes 2.5 ms for an answer."""

    async def ask(self, request):
        until = time.perf_counter() + 0.0025
        while time.perf_counter() < until:
            pass
        await asyncio.sleep(0)
        return b""


@pytest.mark.parametrize("rate", [None, 100.0])
def test_latencies_are_finer_than_the_loops_milliseconds(rate):
    async def ask():
        run = serve_client.Load([b""], 0.5, rate)
        await run.run([Busy()])
        return run

    run = uvloop.run(ask())
    assert min(run.latencies) >= 0.0025
    assert len({round(1000 * latency % 1, 3) for latency in run.latencies}) > 10


def test_a_connection_that_was_closed_is_a_failure():
    async def run():
        served = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        port = served.sockets[0].getsockname()[1]
        connection = await serve_client._connect_http(f"127.0.0.1:{port}")
        for _ in range(2):  # while it is closed, and afterwards
            run = serve_client.Load([b"GET / HTTP/1.1\r\n\r\n"], 0.5, None)
            await asyncio.wait_for(run.run([connection]), 10)
            assert (run.failed, run.failure) == (1, "the connection was closed")
            await asyncio.sleep(0.2)
        served.close()

    asyncio.run(run())


def test_failures_are_counted_and_end_their_connection(server, monkeypatch):
    monkeypatch.setattr(serve_client, "MODEL", "full")
    found = load(server, connections=3, seconds=1.0)
    assert (found["requests"], found["failed"]) == (0, 3)
    assert found["failure"] == '{"error":"the queue of model full is full"}'
    found = load(server, connections=3, seconds=1.0, protocol="grpc", address=server.grpc)
    assert (found["requests"], found["failed"]) == (0, 3)
    assert found["failure"] == "UNAVAILABLE: the queue of model full is full"
    with pytest.raises(UserError, match="did not answer"):
        load(server, connections=1, save="unused")


def test_percentiles():
    assert serve_client.percentile([3, 1, 2], 50) == 2
    assert serve_client.percentile(range(1, 101), 99) == 99
    assert serve_client.percentile([7], 1) == 7
    assert math.isnan(serve_client.percentile([], 50))
