"""gRPC clients that ping, and TLS connections on which nothing is said."""

from __future__ import annotations

import contextlib
import ssl
import time

import grpc
import pytest
from grpc_stub import make_stub, request_of
from oip_cases import TEXT, body_of
from served import DEADLINE, ask, connect, exchange, read_all, serving


def pinging(served, milliseconds):
    options = [
        ("grpc.keepalive_time_ms", milliseconds),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
    ]
    return grpc.insecure_channel(served.grpc, options)


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # with empty settings
PING = b"\0\0\x08\6\0\0\0\0\0" + bytes(8)


@pytest.mark.slow
def test_a_ping_a_second_costs_no_call_and_a_flood_does(tmp_path):
    with serving(tmp_path) as served, pinging(served, 1000) as one, pinging(served, 1000) as idle:
        seen = []
        idle.subscribe(seen.append, try_to_connect=True)
        reply = make_stub(one).ModelInfer(request_of(["sleep 6"]), timeout=DEADLINE)
        assert reply.outputs[0].name == "label"
        with connect(served.grpc) as flood:
            flood.sendall(PREFACE)
            with contextlib.suppress(ConnectionError):  # the server has closed
                for _ in range(100):
                    flood.sendall(PING)
                    time.sleep(0.02)
            assert b"too_many_pings" in read_all(flood)
        assert seen[-1] is grpc.ChannelConnectivity.READY  # and never left it
        assert seen.count(grpc.ChannelConnectivity.READY) == 1


def test_the_shortest_time_between_pings_is_a_setting(tmp_path):
    with serving(tmp_path, "listen.grpc_ping_seconds=60") as served, pinging(served, 500) as one:
        call = make_stub(one).ModelInfer.future(request_of(["sleep 20"]), timeout=DEADLINE)
        assert call.code() is grpc.StatusCode.UNAVAILABLE


@pytest.fixture(scope="module")
def secure(certificate, tmp_path_factory):
    words = ["safety.head_seconds=3", "safety.max_connections=5"]
    words += [f"safety.tls_certificate={certificate[0]}", f"safety.tls_key={certificate[1]}"]
    with serving(tmp_path_factory.mktemp("secure"), *words) as served:
        yield served


def held(client):
    """For how many seconds the server keeps the connection."""
    begin = time.monotonic()
    read_all(client)
    return time.monotonic() - begin


HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # the begin of a handshake


@pytest.mark.parametrize(("protocol", "sentence"), [("http", HELLO), ("grpc", b"")])
def test_handshakes_that_do_not_end_are_ended(secure, certificate, protocol, sentence):
    with connect(getattr(secure, protocol)) as client:
        client.sendall(sentence)
        assert 2 < held(client) < 30
    assert ask(secure.http, "good", verify=str(certificate[0])).status_code == 200


def test_handshakes_count_as_connections(secure, certificate):
    with contextlib.ExitStack() as stack:
        first = [stack.enter_context(connect(secure.http)) for _ in range(5)]
        with connect(secure.http) as sixth:
            assert held(sixth) < 2
        assert all(held(client) < 30 for client in first)
    assert ask(secure.http, "good", verify=str(certificate[0])).status_code == 200


GET = b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
BODY = body_of({**TEXT, "shape": [1], "data": ["sleep 0.5"]})
POST = b"POST /v2/models/sst/infer HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(BODY)


@pytest.mark.parametrize(
    ("sent", "ends", "answer", "times"),
    [
        (GET, "", b'{"live":true}', 10),
        (POST + BODY, "tls", b'"positive"', 1),
        (POST + BODY, "tcp", b'"positive"', 1),
    ],
)
def test_what_comes_with_the_end_of_the_handshake_is_read(
    secure, certificate, sent, ends, answer, times
):
    """A client may send its request and end its side within a packet of its last word."""
    context = ssl.create_default_context(cafile=str(certificate[0]))
    for _ in range(times):
        with connect(secure.http) as client:
            assert answer in exchange(client, context, sent, ends)
    assert "Traceback" not in secure.log and "error" not in secure.log
