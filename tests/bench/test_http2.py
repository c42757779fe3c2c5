"""The benchmark's gRPC client against grpcio's own server."""

from __future__ import annotations

import asyncio
import contextlib

import grpc
import pytest

from fleetbert.bench import http2

METHOD = "/some.Service/Echo"
WORDS = "there is no room: 没有位置, 100 %. " * 20  # longer than one byte can say


class Echo(grpc.GenericRpcHandler):
    """Answers "refuse" with an error, any other message with itself; `slowly` waits before."""

    slowly = 0.0

    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(self.echo) if details.method == METHOD else None

    async def echo(self, request, context):
        await asyncio.sleep(self.slowly)
        if request == b"refuse":
            await context.abort(grpc.StatusCode.UNAVAILABLE, WORDS)
        return request


@contextlib.asynccontextmanager
async def served(handler, method=METHOD):
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    server.add_generic_rpc_handlers([handler])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(
        lambda: http2.Connection(method, f"127.0.0.1:{port}"), "127.0.0.1", port
    )
    await asyncio.wait_for(connection.ready, 10)
    try:
        yield server, connection
    finally:
        await connection.close()
        await server.stop(None)


async def ask(connection, request):
    end = asyncio.get_running_loop().create_future()
    connection.ask(request, end.set_result)
    return await asyncio.wait_for(end, 20), connection.answer


@pytest.mark.parametrize("size", [0, 1, 16379, 16384, 65535, 65536, 1_000_000])
def test_messages_of_all_sizes_come_back(size):
    """Beyond 16384 bytes they are several frames, beyond 65535 the windows are waited for."""

    async def run():
        async with served(Echo()) as (_, connection):
            for number in range(30):  # the windows of all together too
                message = bytes([number]) * size
                assert await ask(connection, message) == (True, message)

    asyncio.run(run())


def test_an_error_is_no_answer_and_the_connection_goes_on():
    async def run():
        async with served(Echo()) as (_, connection):
            for number in range(3):
                good, words = await ask(connection, b"refuse")
                assert not good
                if number == 0:  # then the server refers to what it has said
                    assert words.decode() == f"UNAVAILABLE: {WORDS}"
                assert await ask(connection, b"hello") == (True, b"hello")

    asyncio.run(run())


def test_an_unknown_method_is_no_answer():
    async def run():
        async with served(Echo(), "/some.Service/Nothing") as (_, connection):
            good, words = await ask(connection, b"hello")
            assert not good and words.startswith(b"UNIMPLEMENTED: ")

    asyncio.run(run())


def test_a_server_that_goes_ends_the_call():
    async def run():
        handler = Echo()
        handler.slowly = 30.0
        async with served(handler) as (server, connection):
            asked = asyncio.ensure_future(ask(connection, b"hello"))
            await asyncio.sleep(0.2)
            await server.stop(None)
            good, words = await asked
            assert not good and words
            await asyncio.sleep(0.2)  # the connection is gone too
            assert await ask(connection, b"hello") == (False, b"the connection was closed")

    asyncio.run(run())


class Written:
    """A transport that keeps what is written."""

    def __init__(self):
        self.data = b""

    def write(self, data):
        self.data += data

    def is_closing(self):
        return False

    def sent(self):
        """Bytes of DATA frames since the last call."""
        size, data = 0, self.data
        while data:
            end = 9 + int.from_bytes(data[:3], "big")
            size += end - 9 if data[3] == http2.DATA else 0
            data = data[end:]
        self.data = b""
        return size


def test_no_more_is_sent_than_the_windows_allow():
    """grpcio's server overlooks it, others end the connection."""

    def window_update(stream, more):
        return b"\0\0\4\x08\0" + stream.to_bytes(4, "big") + more.to_bytes(4, "big")

    async def run():
        transport = Written()
        connection = http2.Connection(METHOD, "localhost")
        connection.connection_made(transport)
        transport.data = b""
        # SETTINGS, INITIAL_WINDOW_SIZE: 100
        connection.data_received(b"\0\0\6\4\0\0\0\0\0" + b"\0\4" + (100).to_bytes(4, "big"))
        transport.data = b""
        connection.ask(bytes(100_000), lambda good: None)
        assert transport.sent() == 100
        connection.data_received(window_update(1, 80_000))
        assert transport.sent() == 65435  # with the 100, as much as the connection's window
        update = window_update(0, 1_000_000)
        for byte in update[:-1]:  # however it comes
            connection.data_received(bytes([byte]))
        assert transport.sent() == 0
        connection.data_received(update[-1:])
        assert transport.sent() == 80_100 - 65535
        connection.data_received(window_update(1, 1_000_000))
        assert transport.sent() == 100_005 - 80_100

    asyncio.run(run())
