"""More calls at once than the server takes: each is answered or refused, and counted."""

from __future__ import annotations

import contextlib
import re
from collections import Counter

import grpc
import light
import requests
from grpc_stub import make_stub, request_of
from served import DEADLINE, LIGHT, serving, settings_of

BURST, CHANNELS = 3000, 10  # gRPC's own limits would end some of so many at random


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
        text = requests.get(f"{served.http}/metrics", timeout=DEADLINE).text
        for code, count in codes.items():
            [value] = re.findall(
                rf'requests_total{{code="{code}",.*protocol="grpc".*}} (\S+)', text
            )
            assert float(value) == count
        [value] = re.findall(r'refused_total{.*reason="unavailable".*} (\S+)', text)
        assert float(value) == codes["UNAVAILABLE"]
