"""A gRPC server in an event loop: bytes in, bytes out, over grpcio's core.

For a call that does nothing, `grpc.aio` takes two to three times the processor time (190 to 240
microseconds against 85 where it was measured), `grpc.server` with its threads three to five times.
Both are written over `grpc._cython.cygrpc`, as this is: grpcio's private corner, which nothing
else here touches. Tried with grpcio 1.60, 1.70, 1.80 and 1.85.

A thread waits for what comes and wakes the loop, which takes what else has come meanwhile: handing
over each event by itself takes the thread as long as it takes the loop to handle it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import threading
import time
from typing import Any, AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence

import grpc
from grpc._cython import cygrpc

log = logging.getLogger(__name__)

NO_FLAGS = 0
WAITING = 16  # calls that the core may hand over before it is asked for more
NO_DEADLINE = 1e12  # the core's clock has its end there
AT_ONCE = 0.0  # a time that has passed
NO_EVENT, NO_MORE_EVENTS = (
    cygrpc.CompletionType.queue_timeout,
    cygrpc.CompletionType.queue_shutdown,
)
MOST_EVENTS = 256  # in a turn of the loop, which has others to serve
JOIN_SECONDS = 10.0  # for the thread, which has nothing left to do then

Metadata = Sequence["tuple[str, str]"]


class Abort(Exception):
    """The end of a call with this code; a handler may raise it."""

    def __init__(self, code: grpc.StatusCode, details: str, trailing: Metadata = ()):
        super().__init__(details)
        self.code = code
        self.trailing = trailing


class Call:
    """What a handler knows of its call. `trailing` is the metadata to be sent after the answer."""

    __slots__ = (
        *("_deadline", "begun", "came", "cancel", "core", "gone", "metadata", "method", "trailing"),
    )

    def __init__(self, event: Any):
        self.core = event.call
        self.method: str = event.call_details.method.decode("latin-1")
        self.metadata: Metadata = event.invocation_metadata or ()
        self.trailing: Metadata = ()
        self.cancel: Callable[[], object] | None = None  # ends the answering
        self.begun = False  # something was sent
        self.came = time.monotonic()
        self.gone = False  # the client has cancelled, or its deadline has passed
        self._deadline: float = event.call_details.deadline

    def time_remaining(self) -> float | None:
        """Seconds until the client's deadline; None if it has none."""
        return None if self._deadline > NO_DEADLINE else max(0.0, self._deadline - time.time())


class Later:
    """The answer of a handler that needs no task: `finish` makes it of the future `found` when that
    is done, or raises as a handler does. A task and what goes with it take a small request about a
    twentieth of this process's time."""

    def __init__(self, found: asyncio.Future[Any], finish: Callable[[asyncio.Future[Any]], bytes]):
        self.found, self.finish = found, finish

    def __await__(self) -> Generator[Any, None, bytes]:
        """For those who are in a task: it is cancelled with it."""
        try:
            yield from self.found
        except BaseException:
            if not self.found.done():
                raise
        return self.finish(self.found)


Handler = Callable[[bytes, Call], Awaitable[bytes]]
Stream = Callable[[bytes, Call], AsyncIterator[bytes]]
Explain = Callable[[Exception], "Abort | None"]


class Server:
    """Answers calls by `handlers`, one message each way, and `streams`, several back; both by
    "/service/method". What they are doing is cancelled when the client has gone. A call whose
    message does not come within `message_seconds` is ended. A handler runs in a context of its own
    (`contextvars`).

    explain: how a call ends whose handler raises something else than Abort; None is the server's
    fault.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        streams: Mapping[str, Stream],
        options: Sequence[tuple[str, int]] = (),
        message_seconds: float = math.inf,
        explain: Explain = lambda _: None,
    ):
        self._handlers, self._streams = handlers, streams
        self._explain = explain
        self._queue = cygrpc.CompletionQueue()
        self._core = cygrpc.Server(tuple(options), False)
        self._core.register_completion_queue(self._queue)
        self._thread = threading.Thread(target=self._wait, name="grpc", daemon=True)
        self._drained = threading.Lock()  # released when the thread may wait for the next event
        self._drained.acquire()
        self._over = False  # there are no more events
        self._leaving = False
        self._message_seconds = message_seconds
        self._made: list[tuple[Call, bytes | None]] = []  # answers for the loop's next turn
        self._without: dict[int, Call] = {}  # calls whose message is awaited, oldest first

    def add_insecure_port(self, address: str) -> int:
        """The port's number; 0 or RuntimeError if it cannot be had."""
        return self._core.add_http2_port(address.encode())

    def add_secure_port(self, address: str, credentials: grpc.ServerCredentials) -> int:
        """The same with TLS."""
        return self._core.add_http2_port(address.encode(), credentials._credentials)

    async def start(self) -> None:
        """Answer from now on, in the loop that runs."""
        self._loop = asyncio.get_running_loop()
        self._down = asyncio.Event()  # no call is left
        self._core.start()
        for _ in range(WAITING):
            self._core.request_call(self._queue, self._queue, self._begin)
        self._thread.start()
        if self._message_seconds < math.inf:
            self._watching = self._loop.create_task(self._watch())

    async def stop(self, grace: float | None) -> None:
        """Take no new calls; those under way have `grace` seconds."""
        self._leaving = True
        self._core.shutdown(self._queue, self._end)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._down.wait(), grace or 0.0)
        if not self._down.is_set():
            self._core.cancel_all_calls()
            await self._down.wait()
        if self._message_seconds < math.inf:
            self._watching.cancel()
        self._core.destroy()
        self._queue.shutdown()
        await self._loop.run_in_executor(None, self._thread.join, JOIN_SECONDS)

    def _wait(self) -> None:
        """The thread."""
        while not self._over:
            event = self._queue.poll()
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                self._loop.call_soon_threadsafe(self._drain, event)
            # An event that holds the last reference to a call keeps the core from shutting down.
            del event
            self._drained.acquire()

    # In the loop.

    def _drain(self, event: Any) -> None:
        """Handle this event and all others that are there."""
        for _ in range(MOST_EVENTS):
            if event.completion_type == NO_EVENT:
                break
            if event.completion_type == NO_MORE_EVENTS:
                self._over = True
                break
            try:
                event.tag(event)
            except Exception:  # the other calls go on
                log.exception("gRPC: an event was lost")
            event = self._queue.poll(AT_ONCE)
        else:
            self._loop.call_soon(self._drain, event)
            return
        self._drained.release()

    def _begin(self, event: Any) -> None:
        """A new call, or the end of waiting for one."""
        if not self._leaving:
            self._core.request_call(self._queue, self._queue, self._begin)
        if not event.success:
            return
        call = Call(event)
        if call.method not in self._handlers and call.method not in self._streams:
            words = f"there is no method {call.method[:100]}"
            self._refuse(call, grpc.StatusCode.UNIMPLEMENTED, words)
            return

        def close(closing: Any) -> None:
            if closing.batch_operations[0].cancelled():
                self._cancel(call)

        def receive(receiving: Any) -> None:
            del self._without[id(call)]
            self._take(call, receiving.batch_operations[0].message())

        self._without[id(call)] = call
        call.core.start_server_batch((cygrpc.ReceiveCloseOnServerOperation(NO_FLAGS),), close)
        call.core.start_server_batch((cygrpc.ReceiveMessageOperation(NO_FLAGS),), receive)

    def _refuse(self, call: Call, code: grpc.StatusCode, details: str) -> None:
        operations = (
            cygrpc.SendInitialMetadataOperation(None, NO_FLAGS),
            cygrpc.ReceiveCloseOnServerOperation(NO_FLAGS),
            _status(code, details, ()),
        )
        call.core.start_server_batch(operations, _forget)

    def _end(self, _: Any) -> None:
        self._down.set()

    async def _watch(self) -> None:
        """End calls whose message does not come."""
        while True:
            await asyncio.sleep(min(1.0, self._message_seconds / 4))
            latest = time.monotonic() - self._message_seconds
            for call in list(self._without.values()):
                if call.came < latest and not call.begun:
                    words = f"the message did not come within {self._message_seconds:g} seconds"
                    self._finish(call, grpc.StatusCode.DEADLINE_EXCEEDED, words)

    def _take(self, call: Call, data: bytes | None) -> None:
        if call.begun:  # it was ended already
            return
        if data is None:  # the client has gone, or has sent nothing
            self._finish(call, grpc.StatusCode.INVALID_ARGUMENT, "the call has no message")
        elif not call.gone:
            # In a turn of the loop, and so a context, of its own.
            self._loop.call_soon(self._answer, call, data)

    def _cancel(self, call: Call) -> None:
        call.gone = True
        if call.cancel is not None:
            call.cancel()

    def _answer(self, call: Call, data: bytes) -> None:
        if call.gone:
            return
        handler = self._handlers.get(call.method)
        try:
            answer = self._run_stream(call, data) if handler is None else handler(data, call)
        except Exception as error:
            self._fail(call, error)
            return
        if isinstance(answer, Later):
            call.cancel = answer.found.cancel
            answer.found.add_done_callback(functools.partial(self._end_later, call, answer.finish))
        else:
            call.cancel = self._loop.create_task(self._run(call, answer)).cancel

    def _end_later(
        self, call: Call, finish: Callable[[asyncio.Future[Any]], bytes], found: asyncio.Future[Any]
    ) -> None:
        call.cancel = None  # which refers to the call
        try:
            reply = finish(found)
        except (Exception, asyncio.CancelledError) as error:
            self._fail(call, error)
        else:
            self._send_soon(call, reply)

    def _send_soon(self, call: Call, reply: bytes | None) -> None:
        """Send this answer with all others that this turn of the loop makes, in the next. Making
        one after the other and then sending them takes this process a twentieth less time than each
        by itself: Python's code and the core's drive each other out of the processor's cache."""
        if not self._made:
            self._loop.call_soon(self._send_made)
        self._made.append((call, reply))

    def _send_made(self) -> None:
        made, self._made = self._made, []
        for call, reply in made:
            try:
                self._finish(call, grpc.StatusCode.OK, "", reply)
            except Exception:  # the other answers go out
                log.exception("gRPC: an answer was lost")

    async def _run(self, call: Call, answer: Awaitable[bytes | None]) -> None:
        try:
            self._send_soon(call, await answer)
        except (Exception, asyncio.CancelledError) as error:
            self._fail(call, error)
        finally:
            call.cancel = None  # which refers to the call

    def _fail(self, call: Call, error: Exception | asyncio.CancelledError) -> None:
        """End the call whose handler has raised this."""
        if isinstance(error, asyncio.CancelledError):
            self._finish(call, grpc.StatusCode.CANCELLED, "")
            return
        abort = error if isinstance(error, Abort) else self._explain(error)
        if abort is None:
            log.error("a gRPC call failed", exc_info=error)
            words = "the server failed at this request; its log says why"
            abort = Abort(grpc.StatusCode.INTERNAL, words)
        call.trailing = abort.trailing
        self._finish(call, abort.code, str(abort))
        error.__traceback__ = None  # whose frames refer to the call

    async def _run_stream(self, call: Call, data: bytes) -> None:
        async for reply in self._streams[call.method](data, call):
            sent = self._loop.create_future()

            def done(_: Any, sent: asyncio.Future[None] = sent) -> None:
                if not sent.done():
                    sent.set_result(None)

            self._send(call, [cygrpc.SendMessageOperation(reply, NO_FLAGS)], done)
            await sent

    def _finish(
        self, call: Call, code: grpc.StatusCode, details: str, reply: bytes | None = None
    ) -> None:
        """Send the answer, if there is one, and the end."""
        end = _status(code, details, call.trailing)
        if reply is None:
            self._send(call, [end], _forget)
        else:
            self._send(call, [cygrpc.SendMessageOperation(reply, NO_FLAGS), end], _forget)

    def _send(self, call: Call, operations: list[Any], then: Callable[[Any], None]) -> None:
        if not call.begun:
            call.begun = True
            operations.insert(0, cygrpc.SendInitialMetadataOperation(None, NO_FLAGS))
        call.core.start_server_batch(tuple(operations), then)


def _status(code: grpc.StatusCode, details: str, trailing: Metadata) -> Any:
    return cygrpc.SendStatusFromServerOperation(trailing, code.value[0], details.encode(), NO_FLAGS)


def _forget(_: Any) -> None:
    """Nothing is left to do."""
