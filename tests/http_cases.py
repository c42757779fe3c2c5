"""Bytes on a connection and the status codes that come back before the server ends it.

Both servers answer alike: that of `fleetbert serve` and fleetbert-lite-server. PATH stands for the
path of a model's inferences.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
from typing import NamedTuple

from oip_cases import IDS, TEXT, body_of

DEADLINE = 300  # seconds, against hanging only
MASK = {**IDS, "name": "attention_mask", "data": [1, 1, 0, 1, 1, 1]}
BODY = body_of(TEXT)
CHUNKED = b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
# Its answer is not seen where what came before it ends the connection.
LAST = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


class Case(NamedTuple):
    sent: bytes
    statuses: tuple[int, ...]
    words: str = ""  # among what comes back


def asked(body: bytes = BODY, *fields: bytes) -> bytes:
    """An inference with these header fields, or the length of the body."""
    lines = fields or (b"Content-Length: %d" % len(body),)
    return b"\r\n".join([b"POST PATH HTTP/1.1", b"Host: x", *lines, b"", body])


LENGTH = b"Content-Length: %d"
HERE, BEYOND = LENGTH % len(BODY), LENGTH % (len(BODY) + len(LAST))
AS_CHUNKS = b"Transfer-Encoding: chunked"
CASES = {
    "one": Case(asked() + LAST, (200, 200), '"live":true'),
    "pipelined": Case(asked() * 3 + LAST, (200, 200, 200, 200)),
    "two lengths": Case(asked(BODY, HERE, BEYOND) + LAST, (400,)),
    "two lengths, the larger first": Case(asked(BODY, BEYOND, HERE) + LAST, (400,)),
    "a length beside chunks": Case(asked(CHUNKED + b"\r\n", BEYOND, AS_CHUNKS) + LAST, (400,)),
    "chunks beside a length": Case(asked(CHUNKED + b"\r\n", AS_CHUNKS, BEYOND) + LAST, (400,)),
    "a length with a sign": Case(asked(BODY, b"Content-Length: +%d" % len(BODY)) + LAST, (400,)),
    "a length in hexadecimal": Case(asked(BODY, b"Content-Length: 0x1") + LAST, (400,)),
    "a length below zero": Case(asked(BODY, b"Content-Length: -1") + LAST, (400,)),
    "no length at all": Case(asked(BODY, b"Content-Length:") + LAST, (400,)),
    "a list of lengths": Case(asked(BODY, HERE + b", 7") + LAST, (400,)),
    "chunks in disguise": Case(asked(CHUNKED, b"Transfer-Encoding: xchunked") + LAST, (400,)),
    "chunks not last": Case(asked(CHUNKED, AS_CHUNKS + b", gzip") + LAST, (400,)),
    "a chunk of no size": Case(asked(b"x\r\n" + CHUNKED, AS_CHUNKS) + LAST, (400,)),
    "a blank before the colon": Case(asked(BODY, HERE.replace(b":", b" :")) + LAST, (400,)),
    "not HTTP": Case(b"GET\r\n\r\n" + LAST, (400,)),
    "HTTP of another kind": Case(b"GET /x HTTP/x\r\nHost: x\r\n\r\n" + LAST, (400,)),
    "chunks": Case(asked(CHUNKED + b"\r\n", AS_CHUNKS) + LAST, (200, 200)),
    "trailers": Case(asked(CHUNKED + b"X-A: 1\r\n\r\n", AS_CHUNKS) + LAST, (200, 200)),
    "a column": Case(
        asked(body_of({**TEXT, "shape": [2, 1], "data": [["good"], ["bad"]]})) + LAST, (200, 200)
    ),
    "a mask": Case(asked(body_of(IDS, MASK)) + LAST, (200, 200)),
    "a mask with a hole": Case(
        asked(body_of(IDS, {**MASK, "data": [1, 0, 1, 1, 1, 1]})) + LAST,
        (400, 200),
        "text 0 of input 'attention_mask' is not ones followed by zeros",
    ),
    "a mask beside texts": Case(asked(body_of(TEXT, MASK)) + LAST, (400, 200), "one or the other"),
    "a parameter unknown": Case(
        asked(json.dumps({"inputs": [TEXT], "parameters": {"no": 1, "timeout": 0}}).encode())
        + LAST,
        (200, 200),
        "x-unknown-parameters: 'no'\r\n",
    ),
    "too much is announced": Case(
        asked(b"", b"Expect: 100-continue", b"Content-Length: 99999999", b"Connection: close"),
        (413,),
    ),
    "a client waits to be asked": Case(
        asked(BODY, HERE, b"Expect: 100-continue", b"Connection: close"), (200,)
    ),
}


def check(case: Case, address: str, path: str) -> None:
    """Hold the server at host:port to it; path: of a model's inferences."""
    host, port = address.split(":")
    got = b""
    with socket.create_connection((host, int(port)), timeout=DEADLINE) as client:
        client.sendall(case.sent.replace(b"PATH", path.encode()))
        with contextlib.suppress(ConnectionError):
            for part in iter(lambda: client.recv(65536), b""):
                got += part
    codes = [int(code) for code in re.findall(rb"HTTP/1\.1 (\d+)", got)]
    assert tuple(code for code in codes if code != 100) == case.statuses, got
    assert case.words in got.decode(), got
