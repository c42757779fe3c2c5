"""Hostile requests over real sockets, each followed by a question that is answered."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import fake_core
import grpc
import http_cases
import numpy as np
import pytest
import requests
from grpc_stub import make_stub, request_of, typed
from oip_cases import IDS, REFUSED, TEXT, TOO_LARGE, body_of, raw_texts, refused

from fleetbert.deploy.inference.protocol import http_body
from fleetbert.deploy.inference.protocol import inference_pb2 as pb

LIMIT = fake_core.SAFETY.max_body_bytes
INFER = "/v2/models/sst/infer"
CODE = grpc.StatusCode


@pytest.fixture
def infer(channel):
    return make_stub(channel).ModelInfer


@pytest.fixture(autouse=True)
def alive(post, channel):
    """After each hostile request both protocols still answer, and rightly."""
    yield
    found = post(INFER, data=body_of(TEXT))
    assert found.status_code == 200
    logits = fake_core.logits_of(TEXT["data"])
    assert found.json()["outputs"][2]["data"] == logits.ravel().tolist()
    response = make_stub(channel).ModelInfer(request_of(TEXT["data"]), timeout=60)
    np.testing.assert_array_equal(
        np.frombuffer(response.raw_output_contents[2], "<f4"), logits.ravel()
    )


def head_of(*lines, path=INFER):
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: x", *lines, "", ""]).encode()


def connect(server):
    host, port = server.http.split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def conversation(server, parts):
    """Send parts, each as a packet of its own; all that comes back until the server closes."""
    with connect(server) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            client.sendall(part)
            time.sleep(0.002)
        return b"".join(iter(lambda: client.recv(65536), b""))


JAVA = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAA")
LAST = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
WEBSOCKET = ("Upgrade: websocket", "Connection: keep-alive", "Connection: upgrade")


@pytest.mark.parametrize(
    ("wish", "chunked", "cut"),
    [
        (JAVA, False, "together"),
        (JAVA, True, "bytes"),
        (WEBSOCKET, True, "together"),
        (WEBSOCKET, False, "body apart"),
    ],
)
def test_a_wish_for_another_protocol_is_ignored_and_the_body_read(server, wish, chunked, cut):
    body = json.dumps({"inputs": [TEXT]}).encode()
    if chunked:
        head = head_of(*wish, "Transfer-Encoding: chunked")
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    else:
        head = head_of(*wish, f"Content-Length: {len(body)}")
    request = head + body
    if cut == "together":
        parts = [request + request + LAST]
    elif cut == "body apart":
        parts = [head, body, head, body, LAST]
    else:
        parts = [*(bytes([byte]) for byte in request[: len(head) + 3]), request[len(head) + 3 :]]
        parts += [request + LAST]
    got = conversation(server, parts)
    assert got.count(b"HTTP/1.1 200 OK") == got.count(b"HTTP/1.1 ") == 3
    assert got.count(b'"model_name":"sst"') == 2 and got.endswith(b'{"live":true}')


@pytest.mark.parametrize("case", http_cases.CASES)
def test_bytes_on_a_connection(server, case):
    http_cases.check(http_cases.CASES[case], server.http, INFER)


@pytest.mark.parametrize("apart", [False, True])
def test_a_body_after_a_wish_for_another_protocol_is_no_request(server, apart):
    head = head_of(*JAVA, "Connection: close", f"Content-Length: {len(LAST)}")
    got = conversation(server, [head, LAST] if apart else [head + LAST])
    assert got.startswith(b"HTTP/1.1 400 ") and got.count(b"HTTP/1.1 ") == 1
    assert b"live" not in got and b"connection: close" in got.lower()


def test_connect_is_refused_and_nothing_after_it_is_read(server):
    head = b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"
    got = conversation(server, [head + LAST])
    assert got.startswith(b"HTTP/1.1 405 ") and got.count(b"HTTP/1.1 ") == 1
    assert b"live" not in got


def test_wrong_requests_of_many_clients_at_once(server, post):
    def ask(case):
        body, named = REFUSED[case]
        found = post(INFER, data=body)
        refused(found, 413 if case in TOO_LARGE else 400, named)
        message = found.json()["error"]
        assert len(message) < 300 and "\n" not in message, case

    asked = len(server.core.requests)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, REFUSED))
    assert len(server.core.requests) == asked


@pytest.mark.parametrize(
    ("headers", "body", "code", "words"),
    [
        ({"Inference-Header-Content-Length": "x"}, body_of(TEXT), 400, "Content-Length is 'x'"),
        ({"Content-Encoding": "gzip"}, gzip.compress(body_of(TEXT))[:-5], 400, "gzip stream"),
        ({"Content-Encoding": "deflate"}, b"garbage", 400, "Content-Encoding: deflate"),
        ({"Content-Encoding": "gzip"}, gzip.compress(bytes(64 << 20)), 413, "too large"),
        ({"Content-Encoding": "br"}, b"x", 400, "Content-Encoding is 'br'"),
    ],
    ids=["length", "truncated", "garbage", "bomb", "not offered"],
)
def test_headers_that_do_not_fit_the_body(post, headers, body, code, words):
    assert len(body) < LIMIT
    found = post(INFER, data=body, headers=headers)
    refused(found, code, words)


def test_bodies_over_the_limit_are_refused_and_the_connection_serves_on(server):
    body = b" " * (LIMIT + 1)
    chunks = (body[start : start + 50000] for start in range(0, len(body), 50000))
    with requests.Session() as session:
        for path, data in ((INFER, body), ("/v2/repository/index", body), (INFER, chunks)):
            refused(session.post(f"http://{server.http}{path}", data=data), 413, "too large")
            found = session.post(f"http://{server.http}{INFER}", data=body_of(TEXT).ljust(LIMIT))
            assert found.status_code == 200


def test_an_announced_body_over_the_limit_is_not_sent_at_all(server):
    found = conversation(server, [head_of(f"Content-Length: {LIMIT + 1}", "Expect: 100-continue")])
    assert found.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in found.lower()


def test_an_endless_body_ends_with_its_connection(server, monkeypatch):
    monkeypatch.setattr(http_body, "DRAIN_BYTES", 2 * LIMIT)
    chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"
    sent = 0
    with connect(server) as client, contextlib.suppress(OSError):
        client.sendall(head_of("Transfer-Encoding: chunked"))
        while sent < 100 * LIMIT:
            client.sendall(chunk)
            sent += len(chunk)
    assert sent < 100 * LIMIT


@pytest.mark.parametrize(
    "sent",
    [
        b"garbage\r\n\r\n",
        head_of("Content-Length: 5", "Content-Length: 6") + b"hello!",
        head_of("Content-Length: 99999999999999999999999999"),
        head_of("Transfer-Encoding: chunked") + b"zz\r\nhello\r\n",
        head_of("Transfer-Encoding: chunked", "Content-Length: 3") + b"abc",
        b"GET /v2/models/caf\xc3\xa9 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost : x\r\n\r\n",
    ],
)
def test_what_is_no_http(server, sent):
    found = conversation(server, [sent])
    head, _, body = found.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and b"content-type: application/json" in head
    assert list(json.loads(body)) == ["error"]


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", b"HTTP/1.1, not HTTP/2"),
        (b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\nGET / HTTP/1.1\r\n\r\n", b"no PROXY protocol"),
        (b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + bytes(12), b"no PROXY protocol"),
        (b"\x16\x03\x01\2\0\1\0\1\xfc\3\3" + bytes(50), b"speaks no TLS"),
    ],
)
def test_another_protocol_is_told_what_this_port_speaks(server, sent, words):
    found = conversation(server, [sent])
    assert found.startswith(b"HTTP/1.1 400 ") and words in found


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "latin-1"])
def test_a_body_in_another_encoding(post, encoding):
    body = body_of({**TEXT, "data": ["caf\xe9", "good"]}).decode()
    body = body.replace("\\u00e9", "\xe9").encode(encoding)
    reply = post("/v2/models/sst/infer", data=body)
    assert reply.status_code == 400 and "send UTF-8" in reply.json()["error"]


@pytest.mark.parametrize(("part", "abrupt"), [(0, False), (20, True)])
def test_a_client_that_leaves_in_the_middle_of_its_body(server, part, abrupt):
    asked, done = len(server.core.requests), len(server.done)
    body = body_of(TEXT)
    with connect(server) as client:
        client.sendall(head_of(f"Content-Length: {len(body)}") + body[:part])
        if abrupt:  # a reset in place of an end
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    fake_core.wait_for(lambda: len(server.done) > done)
    assert server.done[-1].code == "499"
    assert len(server.core.requests) == asked


ONE = pb.InferParameter(int64_param=1)


def texts_request(**rest):
    return request_of(TEXT["data"], **rest)


def with_contents(entry, field, values):
    """An input whose elements stand in `field`."""
    tensor = {name: entry[name] for name in ("name", "datatype", "shape")}
    tensor["contents"] = {field: values}
    return pb.ModelInferRequest(model_name="sst", inputs=[tensor])


WRONG_OVER_GRPC = {
    "raw and typed": (
        texts_request(raw_input_contents=[raw_texts(["a", "b"])]),
        "contents beside raw_input_contents",
    ),
    "too few raw": (
        pb.ModelInferRequest(model_name="sst", inputs=[{}] * 2, raw_input_contents=[b""]),
        "raw_input_contents has 1 tensors",
    ),
    "too many raw": (
        texts_request(raw_input_contents=[raw_texts(["a", "b"])] * 2),
        "raw_input_contents has 2 tensors",
    ),
    "NaN for an integer": (
        with_contents(IDS, "fp64_contents", [float("nan")]),
        "fp64_contents; datatype INT64 needs int64_contents",
    ),
    "not UTF-8": (
        with_contents(TEXT, "bytes_contents", [b"a", b"\xff\xfe"]),
        "element 1 of input 'text' is not UTF-8",
    ),
    "no inputs": (pb.ModelInferRequest(model_name="sst"), "inputs hold neither"),
    "shared memory": (
        pb.ModelInferRequest(
            model_name="sst", inputs=[{"parameters": {"shared_memory_region": ONE}}]
        ),
        "'shared_memory_region' of inputs[0]",
    ),
    "classification": (
        texts_request(outputs=[{"name": "label", "parameters": {"classification": ONE}}]),
        "'classification' of outputs[0]",
    ),
}
# Those of JSON that protobuf can say too.
WRONG_IN_BOTH = (
    *("negative product", "no texts", "shape of rank 2", "too many texts", "text too long"),
    *("duplicate outputs", "unknown output", "duplicate inputs", "unknown input", "text empty"),
    *("data too short", "ids outside", "ids longer than the model", "types of another shape"),
    *("texts and ids", "datatype of ids", "only padding"),
)


def in_grpc(case):
    """A case of REFUSED."""
    body, named = REFUSED[case]
    message = json.loads(body)
    request = pb.ModelInferRequest(model_name="sst", inputs=map(typed, message["inputs"]))
    for output in message.get("outputs", ()):
        request.outputs.add(name=output["name"])
    return request, named


@pytest.mark.parametrize("case", [*WRONG_IN_BOTH, *WRONG_OVER_GRPC])
def test_wrong_requests_over_grpc(server, infer, case):
    request, named = WRONG_OVER_GRPC[case] if case in WRONG_OVER_GRPC else in_grpc(case)
    asked = len(server.core.requests)
    call = infer.future(request, timeout=60)
    assert call.code() is CODE.INVALID_ARGUMENT
    assert named in call.details()
    assert len(server.core.requests) == asked


def test_what_is_no_message(channel):
    method = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    assert method.future(b"\xff" * 100, timeout=60).code() is CODE.INVALID_ARGUMENT


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_messages_over_the_limit(server, compression):
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(server.grpc, options) as own:
        request = pb.ModelInferRequest(model_name="sst", raw_input_contents=[bytes(LIMIT * 16)])
        call = make_stub(own).ModelInfer.future(request, timeout=60, compression=compression)
        assert call.code() is CODE.RESOURCE_EXHAUSTED
