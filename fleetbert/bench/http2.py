"""As much of HTTP/2 as it takes to make gRPC's unary calls, one at a time: RFC 9113 (frames,
windows), RFC 7541 (HPACK) and gRPC's PROTOCOL-HTTP2.md.

grpcio's own client takes two thirds of the processor time that the server which is measured takes
for a small request, on the same processors, whose caches it takes away.
"""

from __future__ import annotations

import asyncio
import re
import struct
from typing import Any, Callable
from urllib.parse import unquote

import grpc

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
ACK = END_STREAM = 0x1
END_HEADERS = 0x4
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

CODES = {code.value[0]: code.name for code in grpc.StatusCode}
CLOSED = b"the connection was closed"


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
        if self._transport.is_closing():
            self._finish(False, CLOSED)
            return
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
                self._message += payload
            if kind == RESET:
                self._finish(False, b"the call was reset")
            elif flags & END_STREAM:  # a call that failed has no message
                good = len(self._message) >= MESSAGE_HEAD
                self._finish(good, bytes(self._message[MESSAGE_HEAD:]) if good else _why(payload))
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

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(error or ConnectionResetError("the server closed the door"))
        self._finish(False, CLOSED)

    def _finish(self, good: bool, answer: bytes) -> None:
        done, self._done = self._done, None
        if done is not None:
            self._unsent = memoryview(b"")
            self.answer = answer
            done(good)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


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


def _why(block: bytes) -> bytes:
    """Code and words of the fields at the end of a call that failed. Decoding them takes what all
    calls before have put into the dynamic table; grpcio writes these two out, the first time."""
    found = re.search(rb"grpc-status[\1\2](\d+)", block)
    code = CODES.get(int(found[1]), "") if found else ""
    words = block.partition(b"grpc-message")[2]
    size, place = _integer(words)
    return f"{code}: {unquote(words[place : place + size].decode('latin-1'))}".encode()


def _integer(data: bytes) -> tuple[int, int]:
    """HPACK's, of seven bits or more (RFC 7541, 5.1), and how many bytes it has."""
    value, place = (data[0] & 0x7F, 1) if data else (0, 0)
    if value == 0x7F:
        for place, byte in enumerate(data[1:], 2):
            value += (byte & 0x7F) << 7 * (place - 2)
            if byte < 0x80:
                break
    return value, place
