"""HTTP connections with limits: how many there are, how long a request may take to come.

Who opens many connections and sends a byte now and then (Slowloris) holds them only so long.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
from typing import Any, Callable, Iterable, cast

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from fleetbert.deploy.inference.ops import logs, metrics
from fleetbert.deploy.inference.protocol.auth import Tls
from fleetbert.deploy.inference.settings import Safety

# ASGI's extension by which an application asks to be called when the client goes: with a function,
# and with None when it is no longer of interest.
WHEN_GONE = "fleetbert.when_gone"
MOST_HEAD_BYTES = 64 << 10  # of a request line and its headers; the parser itself has no limit
ACCEPT_PAUSE = 1.0  # seconds, as asyncio's
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
        if self._parts:
            self._transport.write(b"".join(self._parts))
            self._parts.clear()


class Connection(HttpToolsProtocol):
    """Uvicorn's, which by itself waits for ever for the rest of a request."""

    safety: Safety
    age: float | None  # seconds after which the next answer is the last
    idle: float  # seconds without a first request
    leaving = False  # of all connections of a port: each answer is a connection's last
    handshake: Handshake | None = None  # that came before
    _in_head: bool  # a request has yet to come, or the rest of its head
    _begun: bool  # with what was read last
    _head_bytes: int
    _due: float  # when what is waited for has to be there, in the loop's time
    _plain_head: bytes | None = None  # of a request that wishes another protocol: without that
    _leave: Callable[[], None] | None = None  # of the request that is being answered

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.connections.discard(self.handshake)
        self.transport = _Joined(transport, self.loop)  # type: ignore[assignment]
        self._old = math.inf if self.age is None else self.loop.time() + self.age
        self._await_head()
        self._due = self.loop.time() + self.idle
        if len(self.connections) > self.safety.max_connections:
            metrics.REFUSED_CONNECTIONS.inc()
            self._refuse(503, f"this server takes {self.safety.max_connections} connections")

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        size = len(data)
        if self._in_head and not self._head_bytes:  # the first bytes
            self._due = self.loop.time() + self.safety.head_seconds
        try:
            while data:
                data = self._parse(data)
        except httptools.HttpParserCallbackError:
            self._refuse(400, "the request's path or a header cannot be read; write it in ASCII")
            return
        except httptools.HttpParserError as error:
            words = f"this is not HTTP: {error}"
            if "PRI" in str(error):
                words = "this port speaks HTTP/1.1, not HTTP/2; gRPC has a port of its own"
            self._refuse(400, words)
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
        """The client sends no more. What it has asked is answered, but over TLS, where asyncio
        closes."""
        answering = self.cycle is not None and not self.cycle.response_complete
        if not answering or self.cycle.more_body or self.scheme == "https":
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
            self.transport.write(_refusal(status, message))
        self.transport.close()


def _refusal(status: int, message: str) -> bytes:
    body = orjson.dumps({"error": message})
    head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    return STATUS_LINE[status] + head % len(body) + body


class Handshake:
    """A connection until TLS is agreed on. It counts as others do, and has `head_seconds`."""

    def __init__(self, connection: Connection, accepted: socket.socket, context: ssl.SSLContext):
        self._connection, self._accepted, self._context = connection, accepted, context
        connection.handshake = self
        self._others = cast("set[Any]", connection.connections)  # which uvicorn only ends
        self._others.add(self)
        self._shaking = asyncio.ensure_future(self._shake())

    def shutdown(self) -> None:
        """As uvicorn ends connections."""
        self._shaking.cancel()

    async def _shake(self) -> None:
        try:
            seconds = self._connection.safety.head_seconds
            first = await asyncio.wait_for(self._peek(), seconds)
            if first.isalpha():  # a handshake begins with byte 22
                self._refuse_plain()
                return
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._connection,
                self._accepted,
                ssl=self._context,
                ssl_handshake_timeout=seconds,
            )
        except (OSError, asyncio.TimeoutError):  # no TLS, or not in time
            self._accepted.close()
        except asyncio.CancelledError:
            self._accepted.close()
            raise
        finally:
            self._others.discard(self)

    async def _peek(self) -> bytes:
        """The first byte that comes, which stays."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._accepted, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._accepted)
        return self._accepted.recv(1, socket.MSG_PEEK)

    def _refuse_plain(self) -> None:
        words = "this port speaks TLS: the address begins with https://"
        logs.warn_seldom(f"a client sent plain HTTP to a port of TLS; {words}")
        self._accepted.recv(MOST_HEAD_BYTES)  # what is unread would reset the connection
        self._accepted.send(_refusal(400, words))
        self._accepted.close()


class TlsServer:
    """Accepts TLS connections, as an asyncio.Server that tells of each from its first packet on.

    make: a new Connection. tls: its context is that of the moment.
    """

    def __init__(self, opened: socket.socket, tls: Tls, make: Callable[[], Connection]):
        self._opened, self._tls, self._make = opened, tls, make
        self._accepting = asyncio.ensure_future(self._accept())

    def close(self) -> None:
        self._accepting.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(self._accepting, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._opened)
            except OSError:  # no descriptor is left
                await asyncio.sleep(ACCEPT_PAUSE)
                continue
            connection = self._make()
            if len(connection.connections) < connection.safety.max_connections:
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                Handshake(connection, accepted, self._tls.context)
            else:
                accepted.close()


def protocol(section: Safety, age: float | None = None, idle: float = 75.0) -> type[Connection]:
    """The class to give to uvicorn. age, idle: see Listen."""
    return type("Limited", (Connection,), {"safety": section, "age": age, "idle": idle})


async def watch(connections: Iterable[object], section: Safety) -> None:
    """End connections that are overdue, until cancelled."""
    loop = asyncio.get_running_loop()
    pause = min(1.0, section.head_seconds / 4, section.body_seconds / 4)
    while True:
        await asyncio.sleep(pause)
        now = loop.time()
        for connection in list(connections):
            if isinstance(connection, Connection):
                connection.expire(now)
