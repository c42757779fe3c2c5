"""Request bodies over ASGI: read, decoded, and held within a limit while they come."""

from __future__ import annotations

import contextlib
import zlib
from typing import Awaitable, Mapping

from starlette.types import Receive, Scope

from fleetbert.deploy.inference.budget import Share
from fleetbert.deploy.inference.messages import Failure, Reason, Response, show
from fleetbert.deploy.inference.protocol.cancelling import cancelled_as
from fleetbert.deploy.inference.protocol.connections import WHEN_GONE
from fleetbert.deploy.inference.protocol.tensors import refuse

SHARE = "fleetbert.share"  # in a scope: what its request holds of the budget
HEADERS = "fleetbert.headers"  # in a scope: by lower-case name, parsed once
# What is read and thrown away of a body that is too large: many clients look for an answer only
# when all is sent, and lose it when the connection is closed before.
DRAIN_BYTES = 64 << 20
MOST_MEMBERS = 256  # of a gzip body: a valid one may have several (RFC 1952, 2.2)
# What zlib is to expect. "deflate" is a zlib stream in RFC 9110, but a bare one in some clients.
WINDOWS = {"gzip": (31,), "x-gzip": (31,), "deflate": (15, -15)}


class ClientGone(Failure):
    """The client closed its connection before it had its answer."""

    def __init__(self) -> None:
        super().__init__(Reason.CANCELLED, "the client has gone")


class CloseAfter(Failure):
    """A request whose body was not read to its end: the connection cannot be used again."""


async def unless_gone(answering: Awaitable[Response], scope: Scope) -> Response:
    """What is awaited; cancelled, and ClientGone, if the client leaves before it."""
    when_gone = scope["extensions"][WHEN_GONE]["call"]
    with cancelled_as(ClientGone) as leave:
        when_gone(leave)
        try:
            return await answering
        finally:
            when_gone(None)


async def read(headers: Mapping[str, str], receive: Receive, limit: int, share: Share) -> bytes:
    """The whole body, decoded; `share` holds its bytes. Failure TOO_LARGE if it is or would become
    more than `limit`, EXHAUSTED if there is no room for them."""
    announced = headers.get("content-length", "0")
    expects = headers.get("expect", "").lower() == "100-continue"
    if expects and announced.isdecimal() and int(announced[:20]) > limit:
        raise CloseAfter(Reason.TOO_LARGE, _too_large(limit))
    body = await _receive_all(receive, limit, share)
    encoding = headers.get("content-encoding")
    if encoding is None:
        return body
    decoded = decode(body, encoding, limit)
    share.give_back()
    share.take(len(decoded))
    return decoded


def decode(body: bytes, encoding: str, limit: int) -> bytes:
    """Undo `Content-Encoding: gzip` or `deflate`; never holds more than `limit` bytes of it."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    if name not in WINDOWS:
        raise refuse(f"Content-Encoding is {show(encoding)}; it has to be gzip or deflate")
    for window in WINDOWS[name]:
        with contextlib.suppress(zlib.error):
            return _inflate(body, window, name, limit)
    raise refuse(f"the body is not what Content-Encoding: {name} says")


def _inflate(body: bytes, window: int, name: str, limit: int) -> bytes:
    decoded = b""
    for _ in range(1 if name == "deflate" else MOST_MEMBERS):
        stream = zlib.decompressobj(window)
        decoded += stream.decompress(body, limit + 1 - len(decoded))
        if len(decoded) > limit:
            raise Failure(Reason.TOO_LARGE, _too_large(limit, "decoded "))
        if not stream.eof:
            raise refuse(f"the body ends before its {name} stream does")
        body = stream.unused_data
        if not body:
            return decoded
    raise refuse(f"the body has {len(body)} bytes after its {name} stream")


async def _receive_all(receive: Receive, limit: int, share: Share) -> bytes:
    """A body that is refused is read on, up to DRAIN_BYTES, and thrown away."""
    parts: list[bytes] = []
    refusal: Failure | None = None
    size, more = 0, True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise ClientGone
        part, more = event.get("body", b""), event.get("more_body", False)
        size += len(part)
        if size > limit:
            refusal = Failure(Reason.TOO_LARGE, _too_large(limit))
        if refusal is None:
            try:
                share.take(len(part))
                parts.append(part)
            except Failure as failure:
                refusal = failure
        if refusal is not None:
            parts.clear()
            share.give_back()
            if more and size > DRAIN_BYTES:
                raise CloseAfter(refusal.reason, str(refusal))
    if refusal is not None:
        raise refusal
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(limit: int, kind: str = "") -> str:
    return f"the {kind}body is too large; this server takes at most {limit} bytes"
