"""A real run of `bench serve` and the parts of its clients."""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time

import fake_core
import numpy as np
import pytest
import uvloop
from tiny_bert import LABELS

from fleetbert import cli
from fleetbert.bench import serve, serve_client
from fleetbert.errors import UserError
from fleetbert.tasks.metrics import softmax

TEXTS = ["good", "bad bad", "无 good good", "", "x" * 20]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.tsv"
    rows = [f"{LABELS[n % 3]}\t{' '.join(f'word{n + k}' for k in range(n))}" for n in range(1, 30)]
    path.write_text("\n".join(["label\ttext_a", *rows]) + "\n", encoding="utf-8")
    return path


@pytest.mark.slow
def test_all_ways_are_measured_and_answer_alike(tiny_bundle, texts, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(serve, "SIZES", (1, 8))
    words = ["--bundle", tiny_bundle, "--data", texts, "--variant", "float32", "--rounds", 1]
    words += ["--seconds", 1, "--warm", 1, "--connections", 4, "--threads", 1, "--markdown"]
    words += ["--json", tmp_path / "report.json", "--peer-python", sys.executable]
    with pytest.raises(SystemExit) as caught:
        cli.main(["bench", "serve", *map(str, words)])
    out, err = capsys.readouterr()
    assert caught.value.code == 0, err
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert next(iter(report["engines"])) == serve.OFFLINE and len(report["engines"]) == 7
    peer = report["versions"]["FastAPI + ONNX Runtime dynamic int8"]
    assert peer.startswith("ONNX Runtime ") and peer in out
    assert len(report["missing"]) == 1 and report["missing"][0].startswith("OpenVINO int8 (")
    assert report["variant"] == "float32" and report["connections"] == 4
    for name, found in report["engines"].items():
        assert f"| {name} | " in out
        assert found["texts_per_s"] > 0
        if name != serve.OFFLINE:
            assert found["failed"] == 0 and found["client_processors"] > 0
            assert 0 < found["full_p50_ms"] <= found["full_p99_ms"]
            assert found["cpu_ms_per_text"] > 0 and found["peak_mb"] > 0
    answers = report["answers"]
    assert len(answers) == 4
    for name, found in answers.items():
        ours = not name.startswith("FastAPI")
        assert found["difference"] < (1e-4 if ours else 0.5), name  # the peer computes in int8
    assert len(report["beside_peer"]) == len(report["at_equal_p99"]) == 4
    assert out.count(" | FastAPI + ONNX Runtime dynamic int8 | ") == 4
    for found in report["at_equal_p99"]:
        assert found["times"] > 0 and 1 <= found["connections"] <= 16
        assert found["connections"] == 4 or found["p99_ms"] <= found["reference_p99_ms"]


def load(server, **command):
    whole = {"protocol": "http", "address": server.http, "texts_per_request": 2, **command}
    return asyncio.run(serve_client._load(whole, TEXTS))


@pytest.fixture(scope="module")
def server():
    with fake_core.serve() as served:
        yield served


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setattr(serve_client, "MODEL", "sst")


def test_the_clients_read_scores(server, model, tmp_path):
    load(server, connections=1, save=str(tmp_path / "scores.npy"))
    expected = softmax(fake_core.logits_of(TEXTS))
    np.testing.assert_allclose(np.load(tmp_path / "scores.npy"), expected, atol=1e-6)


def test_closed_loop_and_paced(server, model):
    full = load(server, connections=3, seconds=1.0)
    assert full["requests"] > 10 and full["failed"] == 0
    assert full["requests"] < full["texts"] <= 2 * full["requests"]
    assert 0 < full["p50_ms"] <= full["p99_ms"]
    before = len(server.core.questions)
    paced = load(server, connections=3, seconds=1.0, rate=12.0)
    asked = len(server.core.questions) - before
    assert asked <= 12 and paced["requests"] <= asked
    # so slow that most connections have no turn in that time
    slow = load(server, connections=64, seconds=1.0, rate=2.0)
    assert 1 <= slow["requests"] <= 2


class Slow:
    """A server that takes 0.2 s for each answer, one connection's after another's."""

    answer = b""
    free = 0.0

    def ask(self, request, done):
        loop = asyncio.get_running_loop()
        Slow.free = max(Slow.free, loop.time()) + 0.2
        loop.call_at(Slow.free, done, True)


def test_answers_that_come_late_count_and_so_does_the_time_until_then():
    async def ask():
        run = serve_client.Run([b""], 0.5, None)
        await run.go([Slow() for _ in range(4)])
        return run

    run = asyncio.run(ask())
    assert len(run.latencies) == len(run.answered) == 6  # 2 within 0.5 s, and the 4 on their way
    assert len(run.answered) / run.seconds == pytest.approx(5, rel=0.05)


class Busy:
    """A server that is asked in the clients' own process, and takes 2.5 ms for an answer."""

    answer = b""

    def ask(self, request, done):
        until = time.perf_counter() + 0.0025
        while time.perf_counter() < until:
            pass
        asyncio.get_running_loop().call_soon(done, True)


@pytest.mark.parametrize("rate", [None, 100.0])
def test_latencies_are_finer_than_the_loops_milliseconds(rate):
    async def ask():
        run = serve_client.Run([b""], 0.5, rate)
        await run.go([Busy()])
        return run

    run = uvloop.run(ask())
    assert min(run.latencies) >= 0.0025
    assert len({round(1000 * latency % 1, 3) for latency in run.latencies}) > 10


def test_a_connection_that_was_closed_is_a_failure():
    async def run():
        served = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        port = served.sockets[0].getsockname()[1]
        asker = await serve_client._connect_http(f"127.0.0.1:{port}")
        for _ in range(2):  # while it is closed, and afterwards
            run = serve_client.Run([b"GET / HTTP/1.1\r\n\r\n"], 0.5, None)
            await asyncio.wait_for(run.go([asker]), 10)
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
    assert found["failed"] == 3 and found["failure"].startswith("UNAVAILABLE: ")
    assert found["failure"].endswith(": the queue of model full is full")
    with pytest.raises(UserError, match="did not answer"):
        load(server, connections=1, save="unused")


def test_percentiles():
    assert serve_client.percentile([3, 1, 2], 0.5) == 2
    assert serve_client.percentile(range(1, 101), 0.99) == 99
    assert serve_client.percentile([7], 0.01) == 7
    assert math.isnan(serve_client.percentile([], 0.5))


def test_what_cannot_be_measured_is_said(tiny_bundle, texts):
    same = {"variant": "float32", "texts": 9, "connections": 1, "seconds": 1, "warm": 1,
            "rounds": 1, "threads": 1, "peer_python": sys.executable,
            "peers": ["ort-int8"]}  # fmt: skip
    with pytest.raises(UserError, match="--connections is 0"):
        serve.bench(str(tiny_bundle), str(texts), **{**same, "connections": 0})
    with pytest.raises(UserError, match="cannot be run"):
        serve.bench(str(tiny_bundle), str(texts), **{**same, "peer_python": "no-python"})
    with pytest.raises(UserError, match="--peers: triton is none of torch, "):
        serve.bench(str(tiny_bundle), str(texts), **{**same, "peers": ["ort-int8", "triton"]})
    with pytest.raises(UserError, match="no peer to measure: OpenVINO int8 "):
        serve.bench(str(tiny_bundle), str(texts), **{**same, "peers": ["openvino-int8"]})


def test_texts_per_second_are_compared_at_the_same_p99():
    ways = {way.name: way for way in serve._ways([serve.OURS, "peer"])}
    asked = []

    def ask(way, connections):
        """Ours is saturated: latency grows with the connections, and texts/s hardly."""
        asked.append((way, connections))
        if way.server == "peer":
            return {"texts": 100, "seconds": 1.0, "p99_ms": 50.0 * way.size, "failed": 0}
        p99 = 0.1 * way.size * connections + 10
        failed = int(way.protocol == "grpc" and connections > 64)
        return {"texts": 200 + connections, "seconds": 1.0, "p99_ms": p99, "failed": failed}

    found = serve._at_equal_p99(ask, ways, 64)
    assert len(asked) == len(set(asked))
    assert [(one["engine"], one["reference"]) for one in found] == [
        (ours.name, peer.name) for ours, peer in serve._pairs(ways)
    ]
    http = found[0]  # 64 connections: 16.4 ms of 50; 195: 29.5; 256 (331 would be more than 4 x 64)
    assert (http["connections"], http["p99_ms"], http["times"]) == (256, pytest.approx(35.6), 4.56)
    grpc = found[3]  # more connections are refused
    assert (grpc["connections"], grpc["times"]) == (64, 2.64)
