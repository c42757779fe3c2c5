"""HTTP connections with limits: how many there are, how long a request may take to come.

Who opens many connections and sends a byte now and then (Slowloris) holds them only so long.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any, Callable, Iterable

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from fleetbert.deploy.inference.ops import metrics
from fleetbert.deploy.inference.settings import Safety

# ASGI's extension by which an application asks to be called when the client goes: with a function,
# and with None when it is no longer of interest.
WHEN_GONE = "fleetbert.when_gone"
MOST_HEAD_BYTES = 64 << 10  # of a request line and its headers; the parser itself has no limit
NOT_HTTP = {  # by the first bytes
    b"PRI ": "this port speaks HTTP/1.1, not HTTP/2; gRPC has a port of its own",
    b"PROXY ": "this port takes no PROXY protocol: turn it off in the load balancer",
    b"\r\n\r\n\0\r\nQUIT\n": "this port takes no PROXY protocol: turn it off in the load balancer",
    b"\x16\x03": "this port speaks no TLS: the address begins with http://",
}
OF_UPGRADES = (b"upgrade", b"http2-settings")
# In which the client that has ended its side (`nc -N`) gets its answer. Nothing tells it from one
# that has gone, whose request is dropped then.
HALF_CLOSED_SECONDS = 2.0


class _Joined:
    """A transport whose writes of one turn of the loop go out together: uvicorn writes an answer's
    head and body apart, and each write is a call to the system and a packet for the client."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop):
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []
        self.is_closing = transport.is_closing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._parts and not self.is_closing():  # the client may have gone meanwhile
            self._transport.write(b"".join(self._parts))
        self._parts.clear()


class Connection(HttpToolsProtocol):
    """Uvicorn's, which by itself waits for ever for the rest of a request."""

    safety: Safety
    age: float | None  # seconds after which the next answer is the last
    idle: float  # seconds without a first request
    leaving = False  # of all connections of a port: each answer is a connection's last
    _in_head: bool  # a request has yet to come, or the rest of its head
    _begun: bool  # with what was read last
    _head_bytes: int
    _due: float  # when what is waited for has to be there, in the loop's time
    _plain_head: bytes | None = None  # of a request that wishes another protocol: without that
    _leave: Callable[[], None] | None = None  # of the request that is being answered

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = _Joined(transport, self.loop)  # type: ignore[assignment]
        self._old = math.inf if self.age is None else self.loop.time() + self.age
        self._await_head()
        self._due = self.loop.time() + self.idle
        if len(self.connections) > self.safety.max_connections:
            metrics.REFUSED_CONNECTIONS.inc()
            self._refuse(503, f"this server takes {self.safety.max_connections} connections")

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        size, first = len(data), data
        if self._in_head and not self._head_bytes:  # the first bytes
            self._due = self.loop.time() + self.safety.head_seconds
        try:
            while data:
                data = self._parse(data)
        except httptools.HttpParserCallbackError:
            self._refuse(400, "the request's path or a header cannot be read; write it in ASCII")
            return
        except httptools.HttpParserError as error:
            known = (words for begin, words in NOT_HTTP.items() if first.startswith(begin))
            self._refuse(400, next(known, f"this is not HTTP: {error}"))
            return
        if self._in_head:
            # Where the head has just begun, what came before it is no part of it.
            self._head_bytes += 1 if self._begun else size
            self._begun = False
            if self._head_bytes > MOST_HEAD_BYTES and not self.transport.is_closing():
                self._refuse(431, f"the headers have more than {MOST_HEAD_BYTES} bytes")

    def _parse(self, data: bytes) -> bytes:
        """Feed the parser; returns what is to be parsed yet.

        The parser takes what follows a wish for another protocol (`Upgrade: h2c`, of every Java
        client) for that protocol, and so loses the body. This server ignores the wish (RFC 9110,
        7.8): the request is parsed again without it.
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._plain_head is None:  # CONNECT, which was refused
                return b""
            data = self._plain_head + data[upgrade.args[0] :]
            self._plain_head = None
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            return data
        return b""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._leave is not None:
            self._leave()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more. What it has asked is answered."""
        answering = self.cycle is not None and not self.cycle.response_complete
        if not answering or self.cycle.more_body:
            self.transport.close()
            return False
        self.cycle.keep_alive = False
        self.loop.call_later(HALF_CLOSED_SECONDS, self.transport.close)
        return True

    def leave(self) -> None:
        """The answer that is under way is the last."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False

    def when_gone(self, leave: Callable[[], None] | None) -> None:
        """Call leave() if the client goes before this is called with None."""
        self._leave = leave
        if leave is not None and self.transport.is_closing():
            leave()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {WHEN_GONE: {"call": self.when_gone}}
        self._await_head()
        self._begun = True

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                self._refuse(405, "method CONNECT is not allowed")
            else:
                self._plain_head = self._head_without_upgrade()
            return
        self._in_head = False
        self._due = self.loop.time() + self.safety.body_seconds
        super().on_headers_complete()
        if (self.leaving or self.loop.time() > self._old) and not self.pipeline:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._due = math.inf
        super().on_message_complete()

    def pause_writing(self) -> None:
        self._due = self.loop.time() + self.safety.body_seconds
        super().pause_writing()

    def resume_writing(self) -> None:
        self._due = math.inf
        super().resume_writing()

    def expire(self, now: float) -> None:
        """End the connection if what it waits for should have come by now."""
        if now < self._due or self.transport.is_closing():
            return
        if self.flow.write_paused:  # the client does not read its answer
            self.transport.abort()
            return
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering and (self._in_head or not self.cycle.more_body):
            self._due = math.inf  # the request before this one has yet to be answered
        elif self._in_head and not self._head_bytes:
            self.transport.close()
        else:
            part = "head" if self._in_head else "body"
            seconds = self.safety.head_seconds if self._in_head else self.safety.body_seconds
            self._refuse(408, f"the request's {part} did not come within {seconds:g} seconds")

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        for name, value in self.headers:
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                value = b", ".join(t for t in tokens if t.lower() not in OF_UPGRADES)
            if name not in OF_UPGRADES and (value or name != b"connection"):
                lines.append(name + b": " + value)
        return b"\r\n".join([*lines, b"", b""])

    def _await_head(self) -> None:
        self._in_head, self._begun, self._head_bytes = True, False, 0
        self._due = self.loop.time() + self.safety.head_seconds

    def _refuse(self, status: int, message: str) -> None:
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(refusal(status, message))
        self.transport.close()


def refusal(status: int, message: str) -> bytes:
    body = orjson.dumps({"error": message})
    head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    return STATUS_LINE[status] + head % len(body) + body


def protocol(section: Safety, age: float | None = None, idle: float = 75.0) -> type[Connection]:
    """The class to give to uvicorn. age, idle: see Listen."""
    return type("Limited", (Connection,), {"safety": section, "age": age, "idle": idle})


async def watch(connections: Iterable[Any], section: Safety) -> None:
    """End connections that are overdue, until cancelled."""
    loop = asyncio.get_running_loop()
    pause = min(1.0, section.head_seconds / 4, section.body_seconds / 4)
    while True:
        await asyncio.sleep(pause)
        now = loop.time()
        for connection in list(connections):
            connection.expire(now)
