"""The Open Inference Protocol v2 over gRPC, with grpc.health.v1 beside it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from typing import Any, AsyncIterator, Awaitable, Callable, Mapping, Sequence

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from fleetbert.deploy.inference.messages import Core, Failure, Reason, Reply, Version
from fleetbert.deploy.inference.ops import observe
from fleetbert.deploy.inference.protocol import grpc_calls, oip
from fleetbert.deploy.inference.protocol import inference_pb2 as pb
from fleetbert.deploy.inference.protocol.grpc_calls import Abort, Call, Later
from fleetbert.deploy.inference.protocol.tensors import Tensor, refuse, show, to_raw
from fleetbert.deploy.inference.settings import Safety

CODES = {
    Reason.BAD_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.TOO_LARGE: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    Reason.DEADLINE: grpc.StatusCode.DEADLINE_EXCEEDED,
    Reason.CANCELLED: grpc.StatusCode.CANCELLED,
    Reason.INTERNAL: grpc.StatusCode.INTERNAL,
}
# Where the elements of a datatype are, in requests that are not raw.
CONTENTS = {"BYTES": "bytes_contents", "INT64": "int64_contents", "INT32": "int_contents"}
SERVICE = "inference.GRPCInferenceService"
HEALTH = "/grpc.health.v1.Health"
ADMIN = ("RepositoryModelLoad", "RepositoryModelUnload")
WINDOW_BYTES = 1 << 20  # of a request that may be on their way before the server asks for more
WATCH_SECONDS = 0.5  # how often a health watch looks


def server(
    core: Core,
    safety: Safety,
    *,
    admin: bool = True,
    observers: Sequence[observe.Observer] = (observe.count,),
    before: Callable[[str, grpc_calls.Handler], grpc_calls.Handler] | None = None,
) -> Server:
    """A gRPC server of `core`, for a port to be added and to be started, in a running loop.

    admin: whether load and unload are there. observers: told of each inference request when it is
    done. before: makes of a method and its handler the one to call in its place.
    """
    service, health = Service(core, safety, observers), Health(core)
    methods = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
    handlers = {
        f"/{SERVICE}/{method.name}": _handler(service, method)
        for method in methods
        if admin or method.name not in ADMIN
    }
    handlers[f"{HEALTH}/Check"] = health.check
    streams: dict[str, grpc_calls.Stream] = {f"{HEALTH}/Watch": health.watch}
    if before is not None:
        handlers = {name: before(name, handler) for name, handler in handlers.items()}
    options = [
        ("grpc.max_receive_message_length", safety.max_body_bytes),
        ("grpc.max_send_message_length", -1),
        # No ping beside each request to find out how much may be on its way: a tenth of the time.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
        ("grpc.so_reuseport", 0),  # a second server is told that the port is taken
        ("grpc.max_allowed_incoming_connections", safety.max_connections),
        ("grpc.server_handshake_timeout_ms", max(1, round(1000 * safety.head_seconds))),
    ]
    return Server(handlers, streams, options, safety.body_seconds, health)


class Server(grpc_calls.Server):
    """Its health watches, which have no end, do not hold up its own."""

    def __init__(
        self, handlers: Any, streams: Any, options: Any, message_seconds: float, health: Health
    ):
        super().__init__(handlers, streams, options, message_seconds, abort_of)
        self._health = health

    async def stop(self, grace: float | None) -> None:
        self._health.leaving.set()
        await super().stop(grace)


def abort_of(error: Exception) -> Abort | None:
    """How a call ends that raises this; None for what is no Failure."""
    if not isinstance(error, Failure):
        return None
    trailing: grpc_calls.Metadata = ()
    if error.retry_after is not None:  # gRPC clients that retry by themselves wait as long
        trailing = (("grpc-retry-pushback-ms", str(round(error.retry_after * 1000))),)
    return Abort(CODES[error.reason], str(error), trailing)


def code_of(error: BaseException) -> tuple[grpc.StatusCode, str]:
    """What a call ends with that raises this, and why, for those who count and log."""
    if isinstance(error, Abort):
        return error.code, str(error)
    if isinstance(error, Failure):
        return CODES[error.reason], str(error)
    if isinstance(error, asyncio.CancelledError):
        return grpc.StatusCode.CANCELLED, "the client has gone"
    return grpc.StatusCode.INTERNAL, repr(error)


def _handler(service: Service, method: Any) -> grpc_calls.Handler:
    """A call's handler: bytes → request → what `service` does with it."""
    read = getattr(pb, method.input_type.name).FromString
    act = getattr(service, method.name)

    def call(data: bytes, context: Call) -> Awaitable[bytes]:
        try:
            request = read(data)
        except DecodeError:
            raise refuse(f"the request is no {method.input_type.name}") from None
        return act(request, context)

    return call


class Service:
    """The calls, each answered by a message's bytes or ended by a Failure; what each does stands in
    inference.proto."""

    def __init__(self, core: Core, safety: Safety, observers: Sequence[observe.Observer]):
        self._core = core
        self._safety = safety
        self._observers = observers

    async def ServerLive(self, _: Any, __: Any) -> bytes:  # noqa: N802
        return pb.ServerLiveResponse(live=True).SerializeToString()

    async def ServerReady(self, _: Any, __: Any) -> bytes:  # noqa: N802
        return pb.ServerReadyResponse(ready=self._core.ready()).SerializeToString()

    async def ModelReady(self, request: Any, _: Any) -> bytes:  # noqa: N802
        ready = oip.is_ready(self._core, request.name, request.version or None)
        return pb.ModelReadyResponse(ready=ready).SerializeToString()

    async def ServerMetadata(self, _: Any, __: Any) -> bytes:  # noqa: N802
        return pb.ServerMetadataResponse(**oip.server_metadata()).SerializeToString()

    async def ModelMetadata(self, request: Any, _: Any) -> bytes:  # noqa: N802
        found = oip.model_metadata(self._core, request.name, request.version or None)
        del found["parameters"]  # the protocol's message has no place for them
        return pb.ModelMetadataResponse(**found).SerializeToString()

    def ModelInfer(self, request: Any, context: Call) -> Later:  # noqa: N802
        started = time.perf_counter()
        found: Version | None = None
        request_id = request.id

        def tell(error: BaseException) -> None:
            seconds = time.perf_counter() - started
            code, words = code_of(error)
            self._tell(observe.refused("grpc", code.name, seconds, request_id, found, words))

        def finish(answer: asyncio.Future[Reply]) -> bytes:
            try:
                reply = answer.result()
                response = _response(reply, asked)
                seconds = time.perf_counter() - started
                self._tell(observe.answered("grpc", "OK", seconds, request_id, reply))
            except BaseException as error:
                tell(error)
                raise
            context.trailing = (
                ("x-queue-time", f"{reply.queue_seconds * 1e3:.3f}"),  # milliseconds
                ("x-inference-time", f"{reply.compute_seconds * 1e3:.3f}"),
            )
            return response

        try:
            version = request.model_version or None
            found = self._core.find(request.model_name, version)
            asked = _read_request(request, context)
            question = oip.read_question(asked, found, version, self._safety)
            request_id = question.id
            return Later(asyncio.ensure_future(self._core.answer(question)), finish)
        except Exception as error:
            tell(error)
            raise

    async def ModelStatistics(self, request: Any, _: Any) -> bytes:  # noqa: N802
        found = oip.statistics(self._core, request.name or None, request.version or None)
        return pb.ModelStatisticsResponse(**found).SerializeToString()

    async def RepositoryIndex(self, request: Any, _: Any) -> bytes:  # noqa: N802
        models = oip.index(self._core, request.ready)
        return pb.RepositoryIndexResponse(models=models).SerializeToString()

    async def RepositoryModelLoad(self, request: Any, _: Any) -> bytes:  # noqa: N802
        model = _model_of(request)
        await self._core.load(model)
        reply = pb.RepositoryModelLoadResponse(model_name=model, isLoaded=True)
        return reply.SerializeToString()

    async def RepositoryModelUnload(self, request: Any, _: Any) -> bytes:  # noqa: N802
        model = _model_of(request)
        await self._core.unload(model)
        reply = pb.RepositoryModelUnloadResponse(model_name=model, isUnloaded=True)
        return reply.SerializeToString()

    def _tell(self, done: observe.Done) -> None:
        for observer in self._observers:
            observer(done)


class Health:
    """grpc.health.v1: serving while every model that is to be served is ready."""

    def __init__(self, core: Core):
        self._core = core
        self.leaving = asyncio.Event()

    async def check(self, data: bytes, _: Call) -> bytes:
        """The state now; NOT_FOUND for a service that this server has not."""
        service = _service_of(data)
        if service not in ("", SERVICE):
            raise Abort(grpc.StatusCode.NOT_FOUND, f"there is no service {show(service)}")
        return _health_response(self._status(service))

    async def watch(self, data: bytes, _: Call) -> AsyncIterator[bytes]:
        """The state now and whenever it changes, until the server leaves."""
        service = _service_of(data)
        last = None
        while True:
            leaving = self.leaving.is_set()  # before the status: the last one told is the last
            status = self._status(service)
            if status != last:
                yield _health_response(status)
                last = status
            if leaving:
                return
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.leaving.wait(), WATCH_SECONDS)

    def _status(self, service: str) -> Any:
        words = health_pb2.HealthCheckResponse
        if service not in ("", SERVICE):
            return words.SERVICE_UNKNOWN
        ready = self._core.ready() and not self.leaving.is_set()
        return words.SERVING if ready else words.NOT_SERVING


def _service_of(data: bytes) -> str:
    try:
        return health_pb2.HealthCheckRequest.FromString(data).service
    except DecodeError:
        words = "the request is no HealthCheckRequest"
        raise Abort(grpc.StatusCode.INVALID_ARGUMENT, words) from None


def _health_response(status: Any) -> bytes:
    return health_pb2.HealthCheckResponse(status=status).SerializeToString()


def _model_of(request: Any) -> str:
    """The model that is to be loaded or unloaded."""
    oip.check_repository_parameters(_parameters(request.parameters))
    return oip.check_name(request.model_name or request.repository_name)


def _parameters(found: Mapping[str, Any]) -> dict[str, Any]:
    """Python's values of a map of parameters, without those that hold nothing."""
    if not found:
        return {}
    kinds = ((key, value, value.WhichOneof("parameter_choice")) for key, value in found.items())
    return {key: getattr(value, kind) for key, value, kind in kinds if kind is not None}


def _read_request(request: Any, context: Any) -> oip.Request:
    parameters = _parameters(request.parameters)
    left = context.time_remaining()
    if left is not None:
        microseconds = max(1, int(left * 1e6))
        timeout = parameters.setdefault("timeout", microseconds)
        if type(timeout) is int and (timeout == 0 or timeout > microseconds):
            parameters["timeout"] = microseconds
    names = []
    for number, output in enumerate(request.outputs):
        if output.parameters:
            oip.check_tensor_parameters(output.parameters, f"outputs[{number}]")
        names.append(output.name)
    return oip.Request(request.id, parameters, _read_inputs(request), names)


def _read_inputs(request: Any) -> list[Tensor]:
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise refuse(
            f"raw_input_contents has {len(raw)} tensors, but there are {len(request.inputs)} inputs"
        )
    tensors = []
    for number, entry in enumerate(request.inputs):
        if entry.parameters:
            oip.check_tensor_parameters(entry.parameters, f"inputs[{number}]")
        name, datatype, shape = entry.name, entry.datatype, list(entry.shape)
        if raw:
            if entry.HasField("contents"):
                raise refuse(
                    f"input {show(name)} has contents beside raw_input_contents; "
                    "send one or the other"
                )
            tensors.append(Tensor(name, datatype, shape, raw[number], raw=True))
            continue
        wanted = CONTENTS.get(datatype)
        for field, _ in entry.contents.ListFields():
            if wanted is not None and field.name != wanted:
                raise refuse(
                    f"input {show(name)} has {field.name}; datatype {datatype} needs {wanted}"
                )
        values = list(getattr(entry.contents, wanted)) if wanted else []
        tensors.append(Tensor(name, datatype, shape, values))
    return tensors


def _response(reply: Reply, asked: oip.Request) -> bytes:
    """A ModelInferResponse, serialized. What answers have in common is so only once: protobuf reads
    messages that follow each other as one (its guide to the encoding, "Last One Wins")."""
    outputs = oip.outputs(reply, asked.outputs)
    forms = tuple([(output.name, output.datatype, output.shape) for output in outputs])
    own = pb.ModelInferResponse(id=asked.id, raw_output_contents=map(to_raw, outputs))
    return _common(reply.model, reply.version, reply.cut, forms) + own.SerializeToString()


@functools.lru_cache(maxsize=1024)
def _common(
    model: str, version: str, cut: int, forms: Sequence[tuple[str, str, Sequence[int]]]
) -> bytes:
    """A ModelInferResponse without the values of its outputs, of which `forms` has name, datatype
    and shape."""
    response = pb.ModelInferResponse(model_name=model, model_version=version)
    response.parameters["cut"].int64_param = cut
    for name, datatype, shape in forms:
        response.outputs.add(name=name, datatype=datatype, shape=shape)
    return response.SerializeToString()
