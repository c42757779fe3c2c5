"""As much of HTTP/2 as it takes to make gRPC's unary calls, one at a time: RFC 9113 (frames,
windows), RFC 7541 (HPACK) and gRPC's PROTOCOL-HTTP2.md.

grpcio's own client takes about as much processor time for a small request as the server that is
measured, on the same processors, whose caches it takes away.
"""

from __future__ import annotations

import asyncio
import re
import struct
from typing import Any, Callable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
ACK = END_STREAM = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HEAD = 9  # bytes before a frame's payload
MOST = 16384  # bytes of a frame's payload that everyone takes
WINDOW = 65535  # of a connection and of a stream, before anyone says otherwise
LARGEST_WINDOW = 2**31 - 1
INITIAL_WINDOW_SIZE = 4  # among the settings
MESSAGE_HEAD = 5  # bytes before a gRPC message: whether it is compressed, its length

# HPACK: what stands in its static table, and four fields that the first request puts into the
# dynamic one, where every new field moves the others one place back.
POST, HTTP, PATH, AUTHORITY, CONTENT_TYPE = 3, 6, 4, 1, 31
INDEXED, REMEMBERED = 0x80, 0x40
LATEST = 62  # the place of the field that was remembered last


class Connection(asyncio.Protocol):
    """A connection with at most one call on its way; `answer` is the last one's message, or what
    came in its place."""

    def __init__(self, method: str, authority: str):
        self._first, self._next = _header_blocks(method, authority)
        self.answer = b""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._done: Callable[[bool], None] | None = None
        self._buffer = bytearray()
        self._stream = -1
        self._message = bytearray()
        self._unsent = memoryview(b"")
        self._window = WINDOW  # what the server takes on this connection,
        self._stream_window = self._initial_window = WINDOW  # on this stream, and on a new one

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        settings = struct.pack(">HI", INITIAL_WINDOW_SIZE, LARGEST_WINDOW)
        window = struct.pack(">I", LARGEST_WINDOW - WINDOW)
        frames = (_frame(SETTINGS, 0, 0, settings), _frame(WINDOW_UPDATE, 0, 0, window))
        transport.write(b"".join((PREFACE, *frames)))

    def ask(self, request: bytes, done: Callable[[bool], None]) -> None:
        """Send a message; `done` is told whether there was an answer."""
        self._done = done
        self._message.clear()
        self._stream += 2
        self._stream_window = self._initial_window
        block = self._first if self._stream == 1 else self._next
        self._unsent = memoryview(struct.pack(">BI", 0, len(request)) + request)
        self._transport.write(_frame(HEADERS, END_HEADERS, self._stream, block) + self._data())

    async def close(self) -> None:
        self._done = None
        self._transport.close()

    def _data(self) -> bytes:
        """The frames of what the server takes now of the message."""
        frames = []
        while self._unsent:
            size = min(len(self._unsent), MOST, self._window, self._stream_window)
            if size <= 0:
                break
            part, self._unsent = self._unsent[:size], self._unsent[size:]
            self._window -= size
            self._stream_window -= size
            flags = 0 if self._unsent else END_STREAM
            frames.append(_frame(DATA, flags, self._stream, bytes(part)))
        return b"".join(frames)

    def data_received(self, data: bytes) -> None:
        held = self._buffer
        held += data
        start = 0
        while len(held) - start >= HEAD:
            size = int.from_bytes(held[start : start + 3], "big")
            if len(held) - start < HEAD + size:
                break
            kind, flags = held[start + 3], held[start + 4]
            stream = int.from_bytes(held[start + 5 : start + HEAD], "big")
            payload = bytes(held[start + HEAD : start + HEAD + size])
            start += HEAD + size
            self._take(kind, flags, stream, payload)
        del held[:start]

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind in (DATA, HEADERS, RESET):
            if stream != self._stream:
                return
            if kind == DATA:
                self._message += (
                    payload[1 : len(payload) - payload[0]] if flags & PADDED else payload
                )
            if kind == RESET or flags & END_STREAM:
                self._finish(payload)
        elif kind == SETTINGS and not flags & ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == INITIAL_WINDOW_SIZE:
                    self._stream_window += value - self._initial_window
                    self._initial_window = value
            self._transport.write(_frame(SETTINGS, ACK, 0, b"") + self._data())
            if not self.ready.done():
                self.ready.set_result(None)
        elif kind == WINDOW_UPDATE:
            (more,) = struct.unpack(">I", payload)
            if stream == 0:
                self._window += more
            elif stream == self._stream:
                self._stream_window += more
            if self._unsent:
                self._transport.write(self._data())
        elif kind == PING and not flags & ACK:
            self._transport.write(_frame(PING, ACK, 0, payload))
        elif kind == GOAWAY:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(error or ConnectionResetError("the server closed the door"))
        self._finish(b"the connection was closed")

    def _finish(self, last: bytes) -> None:
        """A call that failed has no message: gRPC says why in the fields at its end."""
        self._unsent = memoryview(b"")
        good = len(self._message) >= MESSAGE_HEAD
        self.answer = bytes(self._message[MESSAGE_HEAD:]) if good else _printable(last)
        done, self._done = self._done, None
        if done is not None:
            done(good)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _header_blocks(method: str, authority: str) -> tuple[bytes, bytes]:
    """The header fields of the first request of a connection, and of each that follows."""
    fields = [
        (bytes([REMEMBERED | PATH]), method),
        (bytes([REMEMBERED | AUTHORITY]), authority),
        (bytes([REMEMBERED]) + _string("te"), "trailers"),
        (bytes([REMEMBERED | CONTENT_TYPE]), "application/grpc"),
    ]
    always = bytes([INDEXED | POST, INDEXED | HTTP])
    first = always + b"".join(name + _string(value) for name, value in fields)
    return first, always + bytes(INDEXED | (LATEST + back) for back in reversed(range(len(fields))))


def _string(text: str) -> bytes:
    """HPACK's, without Huffman's code."""
    raw = text.encode()
    assert len(raw) < 127
    return bytes([len(raw)]) + raw


def _printable(block: bytes) -> bytes:
    return b" ".join(re.findall(rb"[\x20-\x7e]{4,}", block))
