"""Huge texts in small bodies: the listener's memory and its answers to others."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import light
import psutil
import pytest
import requests
from grpc_stub import make_stub, request_of
from running_core import light_workers, running, wait_for
from served import DEADLINE, LIGHT, ask, connect, serving, settings_of

from fleetbert.deploy.inference.messages import Reason, Request
from fleetbert.deploy.inference.scheduler import scheduler

MODEL = "tiny"
SIZE = 1_000_000
LIMIT = 64 << 20  # safety.max_waiting_bytes
KINDS = ["word1 ", "a", "\u0301\u0302", "\x01", "字", "e\u0301", "\U0001f600", "\u0e01\u0e34", "."]
CLIENTS, TEXTS = 8, 7
ZIPPED = {"content-encoding": "gzip"}


def text_of(kind: str) -> str:
    size = len(json.dumps(kind, ensure_ascii=False).encode()) - 2
    return "word1 " + kind * (SIZE // size - 10)


def body_of(texts: list[str]) -> bytes:
    tensor = {"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": texts}
    return json.dumps({"inputs": [tensor]}, ensure_ascii=False).encode()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("huge")
    light.make_bundle(folder / "models" / MODEL / "1")
    words = settings_of(folder / "models", "batching.timeout_ms=110000")
    with serving(folder, *words, command=LIGHT) as served:
        for _ in range(20):
            assert ask(served.http, "word1", MODEL).status_code == 200
        yield served


class Watched:
    """The listener's memory at its highest, and its slowest answer to others, meanwhile."""

    def __init__(self, served):
        self.served = served
        self.slowest, self.over = 0.0, False

    def __enter__(self):
        process = Path(f"/proc/{self.served.process.pid}")
        (process / "clear_refs").write_text("5")  # the highest is now
        self.idle = psutil.Process(self.served.process.pid).memory_info().rss
        self.cpu, self.began = self._cpu(), time.monotonic()
        self.thread = threading.Thread(target=self._look)
        self.thread.start()
        return self

    def _cpu(self) -> float:
        times = psutil.Process(self.served.process.pid).cpu_times()
        return times.user + times.system

    def _look(self):
        with requests.Session() as session:
            while not self.over:
                begin = time.monotonic()
                url = f"{self.served.http}/v2/health/live"
                assert session.get(url, timeout=DEADLINE).status_code == 200
                self.slowest = max(self.slowest, time.monotonic() - begin)
                time.sleep(0.02)

    def __exit__(self, *_):
        self.over = True
        self.thread.join()
        self.seconds, self.took = self._cpu() - self.cpu, time.monotonic() - self.began
        status = Path(f"/proc/{self.served.process.pid}/status").read_text()
        self.highest = 1024 * int(re.search(r"VmHWM:\s+(\d+)", status)[1])


def infer(served, body: bytes, **headers: str) -> int:
    url = f"{served.http}/v2/models/{MODEL}/infer"
    return requests.post(url, body, headers=headers, timeout=DEADLINE).status_code


def test_huge_texts_take_little_memory_and_keep_nobody_waiting(served):
    bodies = []
    for number in range(CLIENTS):
        kinds = [KINDS[(number + place) % len(KINDS)] for place in range(TEXTS)]
        bodies.append(gzip.compress(body_of([text_of(kind) for kind in kinds]), 1))
    with Watched(served) as watched, ThreadPoolExecutor(CLIENTS) as pool:
        codes = list(pool.map(lambda body: infer(served, body, **ZIPPED), bodies))
    assert set(codes) <= {200, 503} and 200 in codes
    assert watched.highest < 2 * watched.idle + LIMIT
    assert watched.slowest < max(2, watched.took / 4)  # on a busy machine all takes longer


def test_many_long_texts_of_one_request(served):
    with Watched(served) as watched:
        assert infer(served, body_of(["word1 " + "a é, " * 1300] * 900)) == 200
    assert watched.highest < 2 * watched.idle + LIMIT


@pytest.mark.slow
def test_what_nobody_waits_for_is_not_computed(served):
    """Bodies of clients that hang up."""
    body = gzip.compress(body_of([text_of(KINDS[2])] * TEXTS))
    head = f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nhost: x\r\ncontent-encoding: gzip\r\n"
    with Watched(served) as watched:
        for _ in range(12):
            with connect(served.http) as client:
                client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
                time.sleep(0.02)
        assert ask(served.http, "word1", MODEL).status_code == 200
        idle = psutil.Process(served.process.pid)
        wait_for(lambda: idle.cpu_percent(0.3) < 30, "an idle server")
    assert watched.highest < 2 * watched.idle + LIMIT
    assert watched.seconds < 5


def test_bytes_that_wait_are_limited(tmp_path):
    words = ["safety.max_waiting_bytes=1048576", "safety.body_seconds=600"]
    with serving(tmp_path, *words) as served, contextlib.ExitStack() as stack:
        for _ in range(3):  # bodies that come slowly
            client = stack.enter_context(connect(served.http))
            head = "POST /v2/models/sst/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 400000\r\n\r\n"
            client.sendall(head.encode() + b" " * 300_000)
        big = "good " * 60_000
        served.wait_for(lambda: ask(served.http, big).status_code == 503)
        refused = ask(served.http, big)
        assert refused.headers["retry-after"] == "1"
        assert "safety.max_waiting_bytes" in refused.json()["error"]
        assert ask(served.http, "good").status_code == 200  # a small one fits
        request = request_of([big])
        with grpc.insecure_channel(served.grpc) as channel:
            stub = make_stub(channel)
            with pytest.raises(grpc.RpcError) as caught:
                stub.ModelInfer(request, timeout=DEADLINE)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            text = requests.get(f"{served.http}/metrics", timeout=DEADLINE).text
            assert float(re.search(r"^fleetbert_exhausted_total (\S+)", text, re.M)[1]) >= 3
            stack.close()
            served.wait_for(lambda: ask(served.http, big).status_code == 200)
            stub.ModelInfer(request, timeout=DEADLINE)


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    models = tmp_path_factory.mktemp("models")
    light.make_bundle(models / MODEL / "1")
    with light_workers(), running(models) as core:
        yield core


def test_time_limits_hold_while_others_are_tokenized(core):
    busy, long = threading.Event(), ["word1 " * 2000]
    try:
        for _ in range(2):
            scheduler.TOKENIZING.submit(busy.wait)
        failure = core.failure(model=MODEL, texts=long, timeout=0.3)
        assert failure.reason is Reason.DEADLINE
    finally:
        busy.set()
    assert core.ask(model=MODEL, texts=long).version == "1"


def test_the_rest_is_not_tokenized_when_the_client_has_gone(core, monkeypatch):
    tokenizer = core.scheduler(MODEL)._tokenizer
    real, calls = type(tokenizer).encode, []
    begun, go_on = threading.Event(), threading.Event()

    def encode(self, texts, *rest):
        calls.append(len(texts))
        begun.set()
        go_on.wait(DEADLINE)
        return real(self, texts, *rest)

    monkeypatch.setattr(type(tokenizer), "encode", encode)
    texts = ["word1 " * 5000] * 20
    asked = core.submit(core.repository.answer(Request(MODEL, texts=texts)))
    assert begun.wait(DEADLINE)
    asked.cancel()
    time.sleep(0.2)
    go_on.set()
    scheduler.TOKENIZING.submit(int).result(DEADLINE)
    time.sleep(0.3)
    assert len(calls) == 1 and calls[0] <= 3
    found = core.ask(model=MODEL, texts=texts)
    assert found.truncated == len(found.outputs["label"]) == sum(calls[1:]) == 20
