"""More calls at once than the server takes: each is answered or refused, and counted."""

from __future__ import annotations

import contextlib
import re
import select
from collections import Counter

import grpc
import light
import requests
from grpc_stub import make_stub, request_of
from served import DEADLINE, LIGHT, connect, serving, settings_of

BURST, CHANNELS = 500, 10


def metrics(served) -> str:
    return requests.get(f"{served.http}/metrics", timeout=DEADLINE).text


def test_calls_above_the_queue_are_unavailable_and_counted(tmp_path):
    light.make_bundle(tmp_path / "models" / "tiny" / "1")
    words = settings_of(tmp_path / "models", "batching.queue_tokens=600")
    request = request_of(["word1 word2"], "tiny")
    with serving(tmp_path, *words, command=LIGHT) as served, contextlib.ExitStack() as stack:
        channels = [
            stack.enter_context(
                grpc.insecure_channel(served.grpc, [("grpc.use_local_subchannel_pool", 1)])
            )
            for _ in range(CHANNELS)
        ]
        stubs = [make_stub(channel) for channel in channels]
        [worker] = served.workers()
        worker.suspend()  # so that the queue fills however slowly calls come
        try:
            calls = [
                stubs[number % CHANNELS].ModelInfer.future(request, timeout=DEADLINE)
                for number in range(BURST)
            ]
            served.wait_for(lambda: any(call.done() for call in calls))
        finally:
            worker.resume()
        codes = Counter(call.code().name for call in calls)
        assert set(codes) == {"OK", "UNAVAILABLE"} and sum(codes.values()) == BURST
        words = {call.details() for call in calls if call.code() is grpc.StatusCode.UNAVAILABLE}
        assert all("the queue is full" in word for word in words)
        text = metrics(served)
        for code, count in codes.items():
            [value] = re.findall(
                rf'requests_total{{code="{code}",.*protocol="grpc".*}} (\S+)', text
            )
            assert float(value) == count
        [value] = re.findall(r'refused_total{.*reason="unavailable".*} (\S+)', text)
        assert float(value) == codes["UNAVAILABLE"]


def test_connections_above_the_limit_are_counted(tmp_path):
    with serving(tmp_path, "safety.max_connections=5") as served, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(served.http)) for _ in range(20)]
        served.wait_for(lambda: len(select.select(clients, [], [], 0)[0]) >= 15)
        told, _, _ = select.select(clients, [], [], 0)
        assert [client.recv(100)[:12] for client in told] == [b"HTTP/1.1 503"] * 15
        stack.close()
        served.wait_for(
            lambda: "fleetbert_refused_connections_total 15" in metrics(served), ended=True
        )
