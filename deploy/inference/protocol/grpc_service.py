"""The Open Inference Protocol v2 over gRPC, with grpc.health.v1 beside it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
from typing import Any, AsyncIterator, Awaitable, Callable, Sequence
from urllib.parse import unquote, urlsplit

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection

from fleetbert.deploy.inference.budget import Budget, Share
from fleetbert.deploy.inference.messages import Core, Failure, Reason
from fleetbert.deploy.inference.ops import observe
from fleetbert.deploy.inference.protocol import inference_pb2 as pb
from fleetbert.deploy.inference.protocol.admin import Caller, change
from fleetbert.deploy.inference.protocol.cancelling import cancelled_as
from fleetbert.deploy.inference.protocol.grpc_health import HEALTH, SERVICE, Health
from fleetbert.deploy.inference.protocol.grpc_messages import (
    DESCRIPTIONS,
    read_parameters,
    read_request,
    to_message,
)
from fleetbert.deploy.inference.protocol.middleware import Middleware, infer
from fleetbert.deploy.inference.protocol.tensors import refuse
from fleetbert.deploy.inference.protocol.validation import (
    RawRequest,
    unknown_parameters,
)
from fleetbert.deploy.inference.settings import Admins, Listen, Safety

log = logging.getLogger(__name__)

CODES = {  # their names
    Reason.BAD_REQUEST: "INVALID_ARGUMENT",
    Reason.UNAUTHENTICATED: "UNAUTHENTICATED",
    Reason.FORBIDDEN: "PERMISSION_DENIED",
    Reason.NOT_FOUND: "NOT_FOUND",
    Reason.TOO_LARGE: "INVALID_ARGUMENT",
    Reason.UNAVAILABLE: "UNAVAILABLE",
    Reason.EXHAUSTED: "RESOURCE_EXHAUSTED",
    Reason.DEADLINE: "DEADLINE_EXCEEDED",
    Reason.CANCELLED: "CANCELLED",
    Reason.INTERNAL: "INTERNAL",
}
BROKEN = "the server failed at this request; its log says why"
# For everyone, with or without a key.
OPEN = re.compile(rf"/{SERVICE}/Server(Live|Ready)|/grpc\.health\.v1\..*")
ADMIN = ("RepositoryModelLoad", "RepositoryModelUnload")
WINDOW_BYTES = 1 << 20  # of a request that may be on their way before the server asks for more
# gRPC's own limits end calls of a burst at random; this server's queue says when it is full.
PENDING_CALLS = 1 << 20
LONGEST = 2e6  # seconds; gRPC has 32 bits for milliseconds
STREAMED = 64  # requests of one stream that are under way

# grpc has no types; a message is one of `pb`, by the method.
Context = Any
Message = Any
Act = Callable[[Message, Context], Awaitable[Message]]


class Server:
    """A gRPC server of `core`, for a port to be added and to be started, in a running loop.

    admins: who may load and unload. observers: told of each inference request when it is done.
    """

    def __init__(
        self,
        core: Core,
        safety: Safety,
        listen: Listen = Listen(),  # noqa: B008  nobody changes it
        *,
        admins: Admins = "loopback",
        middleware: Middleware = Middleware(),  # noqa: B008  it cannot change
        observers: Sequence[observe.Observer] = (observe.count,),
    ):
        self._health = Health(core)
        self._grpc = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", safety.max_body_bytes),
                ("grpc.max_send_message_length", -1),
                # No ping beside each request to find out how much may be on its way.
                ("grpc.http2.bdp_probe", 0),
                ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
                ("grpc.so_reuseport", 0),  # a second server is told that the port is taken
                ("grpc.max_allowed_incoming_connections", safety.max_connections),
                ("grpc.server_handshake_timeout_ms", _milliseconds(safety.head_seconds)),
                ("grpc.keepalive_permit_without_calls", 1),  # idle clients may ping too
                (
                    "grpc.http2.min_ping_interval_without_data_ms",
                    _milliseconds(listen.grpc_ping_seconds),
                ),
                ("grpc.max_connection_idle_ms", _milliseconds(listen.idle_seconds)),
                ("grpc.max_connection_age_ms", _milliseconds(listen.age_seconds or LONGEST)),
                ("grpc.server.max_pending_requests", PENDING_CALLS),
                ("grpc.server.max_pending_requests_hard_limit", PENDING_CALLS),
            )
        )
        service = Service(core, safety, admins, observers, middleware.budget)
        wrap = functools.partial(_handler, middleware, safety.body_seconds)
        calls = {
            method.name: wrap(
                f"/{SERVICE}/{method.name}",
                getattr(pb, method.input_type.name).FromString,
                service.act(method.name),
                method.server_streaming,
            )
            for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
            if admins != "nobody" or method.name not in ADMIN
        }
        read = health_pb2.HealthCheckRequest.FromString
        health = {
            "Check": wrap(f"/{HEALTH}/Check", read, self._health.check),
            "Watch": grpc.unary_stream_rpc_method_handler(self._health.watch),
        }
        self._grpc.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, calls),
                grpc.method_handlers_generic_handler(HEALTH, health),
            )
        )
        reflection.enable_server_reflection((SERVICE, HEALTH, reflection.SERVICE_NAME), self._grpc)
        self.add_insecure_port = self._grpc.add_insecure_port
        self.add_secure_port = self._grpc.add_secure_port
        self.start = self._grpc.start
        self._stopping: asyncio.Future[None] | None = None

    def leave(self) -> asyncio.Future[None]:
        """Tell all clients to send their next calls elsewhere (GOAWAY). Calls under way go on, and
        are awaited; health watches end at once."""
        self._health.leaving.set()
        self._stopping = asyncio.ensure_future(self._grpc.stop(LONGEST))
        return self._stopping

    async def stop(self, grace: float) -> None:
        """`leave`, and end the calls that are still under way after `grace` seconds."""
        stopping = self._stopping or self.leave()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(stopping, grace)
        await self._grpc.stop(None)


def _milliseconds(seconds: float) -> int:
    return max(1, round(1000 * min(seconds, LONGEST)))


def _code_of(error: BaseException) -> tuple[str, str]:
    """The name of the code that a call ends with that raises this, and why, for those who count and
    log."""
    if isinstance(error, Failure):
        return CODES[error.reason], str(error)
    if isinstance(error, asyncio.CancelledError):
        return "CANCELLED", "the client has gone"
    return "INTERNAL", repr(error)


def _handler(
    middleware: Middleware,
    message_seconds: float,
    method: str,
    parse: Callable[[bytes], Message],
    act: Any,
    streams: bool = False,
) -> Any:
    """The handler of a method with one message each way, or with streams of them. gRPC is told
    that all requests are streams: it waits for ever for the one message of others."""
    closed = not OPEN.fullmatch(method)

    def read(data: bytes) -> Message:
        try:
            return parse(data)
        except DecodeError:
            raise refuse(f"the message is not that of {method}") from None

    async def answer(
        requests: AsyncIterator[bytes], context: Context, share: Share
    ) -> bytes | None:
        if not streams:
            data = await _receive(context, message_seconds)
            share.take(len(data))
            request = read(data)
            del data  # the message has it once more
            return (await act(request, context)).SerializeToString()
        async for data in act(requests, read, context):
            await context.write(data)
        return None

    async def handle(requests: AsyncIterator[bytes], context: Context) -> bytes | None:
        headers = dict(context.invocation_metadata())
        around = middleware.around("grpc", method, headers)
        with around as call, middleware.budget.share() as share:
            try:
                if closed:
                    middleware.check_key(headers)
                answered = await answer(requests, context, share)
                call.code = "OK"
                return answered
            except (Exception, asyncio.CancelledError) as error:
                call.code, words = _code_of(error)
                if call.code == "CANCELLED":
                    raise
                if call.code == "INTERNAL":
                    log.error("a gRPC call failed", exc_info=error)
                    words = BROKEN
                trailing: tuple[tuple[str, str], ...] = ()
                if isinstance(error, Failure) and error.retry_after is not None:
                    # gRPC clients that retry by themselves wait as long.
                    trailing = (("grpc-retry-pushback-ms", str(round(error.retry_after * 1000))),)
                return await context.abort(grpc.StatusCode[call.code], words, trailing)

    if streams:
        return grpc.stream_stream_rpc_method_handler(handle)
    return grpc.stream_unary_rpc_method_handler(handle)


async def _receive(context: Context, seconds: float) -> bytes:
    """The call's message; Failure if it does not come in time, or there is none."""

    def late() -> Failure:
        return Failure(Reason.DEADLINE, f"the message did not come within {seconds:g} seconds")

    with cancelled_as(late) as end:
        timer = asyncio.get_running_loop().call_later(seconds, end)
        try:
            data = await context.read()
        finally:
            timer.cancel()
    if data is grpc.aio.EOF:
        raise refuse("the call has no message")
    return data


class Service:
    """The calls, each answered by a message or ended by a Failure."""

    def __init__(
        self,
        core: Core,
        safety: Safety,
        admins: Admins,
        observers: Sequence[observe.Observer],
        budget: Budget,
    ):
        self._core, self._safety, self._admins = core, safety, admins
        self._observers, self._budget = observers, budget

    def act(self, method: str) -> Act:
        """What answers the method's requests."""
        if method not in DESCRIPTIONS:
            act: Act = getattr(self, method)
            return act

        async def tell(request: Message, _: Context) -> Message:
            return DESCRIPTIONS[method](self._core, request)

        return tell

    async def ModelInfer(  # noqa: N802
        self, request: pb.ModelInferRequest, context: Context
    ) -> pb.ModelInferResponse:
        answer, headers = await self._infer(request, context.time_remaining())
        context.set_trailing_metadata(headers)
        return answer

    async def ModelStreamInfer(  # noqa: N802
        self,
        requests: AsyncIterator[bytes],
        read: Callable[[bytes], pb.ModelInferRequest],
        context: Context,
    ) -> AsyncIterator[bytes]:
        """The answers in the order of the requests, of which STREAMED are under way at most."""
        answers: asyncio.Queue[asyncio.Future[bytes] | None] = asyncio.Queue(STREAMED)

        async def answer(data: bytes) -> bytes:
            reply = pb.ModelStreamInferResponse()
            try:
                with self._budget.share() as share:
                    share.take(len(data))
                    request = read(data)
                    reply.infer_response.id = request.id
                    response, _ = await self._infer(request, context.time_remaining())
                    reply.infer_response.CopyFrom(response)
            except Exception as error:
                if not isinstance(error, Failure):
                    log.error("a streamed request failed", exc_info=error)
                reply.error_message = str(error) if isinstance(error, Failure) else BROKEN
            return reply.SerializeToString()

        async def take() -> None:
            async for data in requests:
                await answers.put(asyncio.ensure_future(answer(data)))
            await answers.put(None)

        taking = asyncio.ensure_future(take())
        try:
            while (answering := await answers.get()) is not None:
                yield await answering
        finally:
            taking.cancel()
            while not answers.empty():
                left = answers.get_nowait()
                if left is not None:
                    left.cancel()

    async def _infer(
        self, request: pb.ModelInferRequest, seconds_left: float | None
    ) -> tuple[pb.ModelInferResponse, tuple[tuple[str, str], ...]]:
        """The answer, and what is told beside it."""
        observing = observe.Observed("grpc", "OK", _code_of, self._observers, request.id)
        with observing as observed, self._budget.share() as share:
            raw: RawRequest | None = None

            def read() -> RawRequest:
                nonlocal raw
                parsed = read_request(request, seconds_left)
                raw = parsed._replace(inputs=())  # what waits for its answer needs no more
                return parsed

            response = await infer(
                self._core,
                self._safety,
                request.model_name,
                request.model_version or None,
                read,
                observed,
                share,
            )
            assert raw is not None
            answer = to_message(response, raw)
            observed.response = response
        unknown = unknown_parameters(raw)
        return answer, (
            ("x-queue-time", f"{response.queue_seconds * 1e3:.3f}"),  # milliseconds
            ("x-inference-time", f"{response.compute_seconds * 1e3:.3f}"),
            *((("x-unknown-parameters", unknown),) if unknown else ()),
        )

    async def RepositoryModelLoad(  # noqa: N802
        self, request: pb.RepositoryModelLoadRequest, context: Context
    ) -> pb.RepositoryModelLoadResponse:
        model = await self._change(self._core.load, request, context)
        return pb.RepositoryModelLoadResponse(model_name=model, isLoaded=True)

    async def RepositoryModelUnload(  # noqa: N802
        self, request: pb.RepositoryModelUnloadRequest, context: Context
    ) -> pb.RepositoryModelUnloadResponse:
        model = await self._change(self._core.unload, request, context)
        return pb.RepositoryModelUnloadResponse(model_name=model, isUnloaded=True)

    async def _change(
        self,
        act: Callable[[str], Awaitable[None]],
        request: pb.RepositoryModelLoadRequest | pb.RepositoryModelUnloadRequest,
        context: Context,
    ) -> str:
        # "ipv4:127.0.0.1:80", "ipv6:%5B::1%5D:80"
        peer = urlsplit(f"//{unquote(context.peer()).partition(':')[2]}")
        Caller(peer.hostname or "", dict(context.invocation_metadata())).check(self._admins)
        model = request.model_name or request.repository_name
        await change(act, model, read_parameters(request.parameters))
        return model
