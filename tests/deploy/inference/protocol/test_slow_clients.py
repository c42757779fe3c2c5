"""Clients that hold connections without asking: they are ended, and others are answered."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
import requests
from oip_cases import TEXT, body_of
from served import DEADLINE, ask, connect, read_all, serving

HEAD = b"POST /v2/models/sst/infer HTTP/1.1\r\nhost: x\r\n"
SLOW = {  # what is sent at once, what is sent again and again, what the answer says
    "nothing": (b"", b"", b""),
    "half a head": (HEAD, b"", b"head did not come"),
    "a head that comes slowly": (HEAD + b"x: ", b"x", b"head did not come"),
    "half a body": (HEAD + b"content-length: 100\r\n\r\n{", b"", b"body did not come"),
    "a body that comes slowly": (
        HEAD + b"content-length: 1000000\r\n\r\n[",
        b" ",
        b"body did not come",
    ),
    "chunks that come slowly": (
        HEAD + b"transfer-encoding: chunked\r\n\r\n",
        b"1\r\n \r\n",
        b"body did not come",
    ),
}


@pytest.fixture(scope="module")
def impatient(tmp_path_factory):
    words = ["safety.head_seconds=2", "safety.body_seconds=3", "listen.idle_seconds=6"]
    with serving(tmp_path_factory.mktemp("impatient"), *words) as served:
        yield served


def hold(served, sent, more):
    """Send slowly until the server ends the connection; what it said."""
    got = b""
    with connect(served.http) as client, contextlib.suppress(ConnectionError):
        client.sendall(sent)
        client.settimeout(0.1)
        while True:
            try:
                part = client.recv(65536)
                got += part
                if not part:
                    break
            except socket.timeout:
                client.sendall(more)
    return got


def answered(served):
    """Whether a good request is answered; one that this machine delays for seconds is not."""
    with contextlib.suppress(requests.ConnectionError):
        return ask(served.http, "good").status_code == 200
    return False


def test_slow_requests_are_ended_and_others_answered(impatient):
    with ThreadPoolExecutor(len(SLOW)) as pool:
        held = {
            name: pool.submit(hold, impatient, sent, more) for name, (sent, more, _) in SLOW.items()
        }
        impatient.wait_for(lambda: answered(impatient))
    for name, (_, _, words) in SLOW.items():
        said = held[name].result()
        assert words in said, name
        assert said.startswith(b"HTTP/1.1 408 ") if words else said == b"", name


def test_a_connection_that_has_had_its_answer_may_wait_longer_than_a_request(impatient):
    with connect(impatient.http) as client:
        for seconds in (4, 0):  # more than head_seconds and body_seconds
            client.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n")
            assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
            time.sleep(seconds)


def test_a_connection_may_wait_longer_for_its_first_request_than_a_head(impatient):
    with connect(impatient.http) as client:
        time.sleep(4)  # more than head_seconds
        client.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(("text", "begin"), [("sleep 0.3", b"HTTP/1.1 200 "), ("sleep 600", b"")])
def test_a_client_that_closes_its_side_gets_an_answer_that_comes_soon(impatient, text, begin):
    body = body_of({**TEXT, "shape": [1], "data": [text]})
    with connect(impatient.http) as client:
        client.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
        client.shutdown(socket.SHUT_WR)
        said = read_all(client)
    assert said.startswith(begin) and bool(said) is bool(begin)


def test_a_client_that_goes_before_its_answers_leaves_no_fault_in_the_log(impatient):
    def gone():
        told = requests.get(f"{impatient.http}/metrics").text
        return sum(map(float, re.findall(r'requests_total\{code="499".* (\S+)\n', told)))

    body = body_of({**TEXT, "shape": [1], "data": ["sleep 600"]})
    before, asleep = gone(), impatient.log.count("asleep")
    with connect(impatient.http) as client:
        client.sendall((HEAD + b"content-length: %d\r\n\r\n" % len(body) + body) * 3)
        impatient.wait_for(lambda: impatient.log.count("asleep") > asleep)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    impatient.wait_for(lambda: gone() > before)
    time.sleep(0.1)  # what is written to nobody is written in the loop's next turn
    assert '"level":"error"' not in impatient.log


def test_an_answer_may_take_longer_than_its_request(impatient):
    assert ask(impatient.http, "sleep 4").status_code == 200


def test_an_answer_goes_out_in_one_piece(impatient):
    body = body_of(TEXT)
    with connect(impatient.http) as client:
        for _ in range(30):
            client.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
            head, _, rest = client.recv(65536).partition(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            assert length is not None
            assert len(rest) == int(length[1]) > 0


def test_a_head_without_an_end(impatient):
    with connect(impatient.http) as client:
        client.sendall(HEAD)
        with contextlib.suppress(OSError):  # the server has closed
            while True:
                client.sendall(b"x: y\r\n" * 2000)
        said = read_all(client)
    assert said == b"" or said.startswith(b"HTTP/1.1 431 ")
    impatient.wait_for(lambda: answered(impatient))


def test_a_call_without_its_message_is_ended(impatient):
    over = threading.Event()

    def nothing():
        over.wait(DEADLINE)
        yield from ()

    with grpc.insecure_channel(impatient.grpc) as channel:
        call = channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")
        try:
            with pytest.raises(grpc.RpcError) as caught:
                call(nothing(), timeout=DEADLINE)
        finally:
            over.set()
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "the message did not come within 3 seconds" in caught.value.details()


def test_a_connection_that_does_not_speak_grpc_is_ended(impatient):
    with connect(impatient.grpc) as client:
        read_all(client)


def test_connections_beyond_the_limit_are_refused_and_counted(tmp_path):
    words = ["safety.max_connections=5", "safety.head_seconds=600"]
    with serving(tmp_path, *words) as served, contextlib.ExitStack() as stack:
        held = [stack.enter_context(connect(served.http)) for _ in range(5)]
        for _ in range(3):
            with connect(served.http) as more:
                said = read_all(more)
            assert said.startswith(b"HTTP/1.1 503 ")
            assert b"this server takes 5 connections" in said
        body = body_of(TEXT)
        held[0].sendall(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
        assert held[0].recv(65536).startswith(b"HTTP/1.1 200 ")
        held[1].close()
        served.wait_for(lambda: answered(served))
        held[0].sendall(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        [count] = re.findall(rb"\nfleetbert_refused_connections_total (\S+)", read_all(held[0]))
        assert float(count) >= 3  # and those that came before the end of the second was seen
