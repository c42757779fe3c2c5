"""TLS below an HTTP connection.

asyncio's own TLS ends a connection as soon as the client ends its side, though an answer is under
way, and does not tell of connections whose handshake is not done.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Any

from fleetbert.deploy.inference.ops import logs
from fleetbert.deploy.inference.protocol.connections import Connection, refusal

READ_BYTES = 64 << 10
HTTPS = "this port speaks TLS: the address begins with https://"


class TlsConnection(asyncio.Protocol):
    """The protocol of a TCP connection, and the transport of the HTTP connection in it.

    Until the handshake is done it counts as a connection itself, and has `head_seconds`.
    """

    def __init__(self, connection: Connection, context: ssl.SSLContext):
        self._connection, self._context = connection, context
        self._others: set[Any] = connection.connections  # uvicorn ends what is in it
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_new, self._is_open = True, False  # nothing came yet; the handshake is done

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self.is_closing, self.abort = transport.is_closing, transport.abort
        self.pause_reading, self.resume_reading = transport.pause_reading, transport.resume_reading
        safety = self._connection.safety
        self._due = self._connection.loop.time() + safety.head_seconds
        self._others.add(self)
        if len(self._others) > safety.max_connections:
            transport.close()

    def data_received(self, data: bytes) -> None:
        if self._is_new and data[:1].isalpha():  # a handshake begins with byte 22
            logs.warn_seldom(f"a client sent plain HTTP to a port of TLS; {HTTPS}")
            self._transport.write(refusal(400, HTTPS))
            self._transport.close()
            return
        self._is_new = False
        self._incoming.write(data)
        try:
            self._read()
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLError:
            self._flush()  # what TLS says about it
            self._transport.close()

    def _read(self) -> None:
        """SSLWantReadError when all was read."""
        if not self._is_open:
            self._tls.do_handshake()
            self._is_open = True
            self._others.discard(self)
            self._connection.connection_made(self)  # type: ignore[arg-type]
        while not self._transport.is_closing():
            data = self._tls.read(READ_BYTES)
            if not data:
                self._flush()
                self.eof_received()
                return
            self._connection.data_received(data)

    def eof_received(self) -> bool:
        return self._is_open and self._connection.eof_received()

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._others.discard(self)
        if self._is_open:
            self._connection.connection_lost(exc)

    def expire(self, now: float) -> None:
        if now >= self._due:
            self._transport.close()

    def shutdown(self) -> None:
        self._transport.close()

    # From here on: the transport.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "sslcontext":
            return self._context
        return self._transport.get_extra_info(name, default)

    def write(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        rest = memoryview(data)
        while rest:  # a record is at most 16 KiB
            rest = rest[self._tls.write(rest) :]
        self._flush()

    def close(self) -> None:
        if not self._transport.is_closing():
            with contextlib.suppress(ssl.SSLError):  # the client's word is not awaited
                self._tls.unwrap()
            self._flush()
            self._transport.close()

    def _flush(self) -> None:
        if self._outgoing.pending and not self._transport.is_closing():
            self._transport.write(self._outgoing.read())
