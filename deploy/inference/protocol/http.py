"""The Open Inference Protocol v2 over HTTP, as a Starlette application."""

from __future__ import annotations

import asyncio
import math
import re
import time
from typing import Any, Awaitable, Callable, Mapping, Sequence

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp as App
from starlette.types import Receive, Scope, Send

from fleetbert.deploy.inference.messages import (
    Core,
    Failure,
    Question,
    Reason,
    Reply,
    State,
    Version,
)
from fleetbert.deploy.inference.ops import observe
from fleetbert.deploy.inference.protocol import http_body, http_json, oip, openapi
from fleetbert.deploy.inference.protocol.connections import WHEN_GONE
from fleetbert.deploy.inference.protocol.http_body import ClientGone, CloseAfter
from fleetbert.deploy.inference.protocol.tensors import refuse, show
from fleetbert.deploy.inference.settings import Safety

STATUS = {
    Reason.BAD_REQUEST: 400,
    Reason.NOT_FOUND: 404,
    Reason.TOO_LARGE: 413,
    Reason.UNAVAILABLE: 503,
    Reason.DEADLINE: 504,
    Reason.CANCELLED: 499,  # nginx's; nobody is there to read it
    Reason.INTERNAL: 500,
}
RETRY_AFTER = 1.0  # seconds, where a failure does not say
JSON = b"application/json"
ERROR = {"error": "the server failed at this request; its log says why"}
INFER = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?/infer")
HEADER_LENGTH = b"inference-header-content-length"


def app(
    core: Core,
    safety: Safety,
    *,
    inference: bool = True,
    admin: bool = True,
    api_key: bool = False,
    extra: Sequence[BaseRoute] = (),
    observers: Sequence[observe.Observer] = (observe.count,),
) -> App:
    """The calls of the protocol over `core`, an ASGI application for a port of `connections`.

    inference, admin: which calls there are (load and unload are admin's; health is always
    there), for a server that has them on two ports. api_key: whether the OpenAPI document says
    that clients need a key; who asks for it wraps this application. extra: further routes.
    observers: told of each inference request when it is done.
    """
    routes: list[BaseRoute] = _health(core)
    infer = Infer(core, safety, observers) if inference else None
    if infer is not None:
        routes = [*_both(infer, "infer", methods=["POST"]), *routes, *_inference(core, safety)]
    if admin:
        routes += _admin(core, safety)

    async def openapi_json(_: Request) -> Response:
        ready = (found for found in core.versions() if found.state is State.READY)
        # The document is for everyone: where a key is needed, it tells no names.
        models = [] if api_key else sorted({found.model for found in ready})
        return _json(
            openapi.document(inference=inference, admin=admin, api_key=api_key, models=models)
        )

    routes += [Route("/openapi.json", openapi_json), *extra]
    handlers: Any = {
        Failure: _on_failure,
        HTTPException: _on_http_exception,
        ClientGone: _on_gone,
        Exception: _on_error,
    }
    application = Starlette(routes=routes, exception_handlers=handlers)
    application.router.redirect_slashes = False
    if infer is None:
        return application
    return _short_way(infer, application)


def _short_way(infer: Infer, application: Starlette) -> App:
    """Inference goes straight to `infer`: Starlette's layers take as long as parsing a request."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        found = INFER.fullmatch(scope["path"])
        if found is None or scope["method"] != "POST":
            await application(scope, receive, send)
            return
        model, version = found.groups()
        scope["path_params"] = {"model": model, "version": version}
        try:
            await infer(scope, receive, send)
        except Exception:
            await _json(ERROR, 500)(scope, receive, send)
            raise

    return call


class Infer:
    """POST .../infer, as a bare ASGI application: this is the way that has to be short."""

    def __init__(self, core: Core, safety: Safety, observers: Sequence[observe.Observer]):
        self._core = core
        self._safety = safety
        self._observers = observers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; Failures are answered here, other errors raised for the server."""
        headers = dict(scope["headers"])
        request_id = headers.get(b"x-request-id", b"").decode("latin-1")
        found: Version | None = None
        started = time.perf_counter()

        def done(code: int, error: str) -> observe.Done:
            seconds = time.perf_counter() - started
            return observe.refused("http", str(code), seconds, request_id, found, error)

        try:
            data = await http_body.read(headers, receive, self._safety.max_body_bytes)
            started = time.perf_counter()
            names = scope["path_params"]
            version = names.get("version")
            found = self._core.find(names["model"], version)
            length = headers.get(HEADER_LENGTH)
            body = http_json.parse(data, None if length is None else length.decode("latin-1"))
            question = oip.read_question(body.request, found, version, self._safety, request_id)
            request_id = question.id
            reply = await _answer(self._core, question, scope)
            content, head = http_json.render(reply, body)
            self._tell(
                observe.answered("http", "200", time.perf_counter() - started, request_id, reply)
            )
        except Failure as failure:
            self._tell(done(STATUS[failure.reason], str(failure)))
            await _failure_response(failure)(scope, receive, send)
            return
        except ClientGone:
            self._tell(done(STATUS[Reason.CANCELLED], "the client has gone"))
            return
        except Exception as error:
            self._tell(done(500, repr(error)))
            raise
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": _headers(content, head, reply),
            }
        )
        await send({"type": "http.response.body", "body": content})

    def _tell(self, done: observe.Done) -> None:
        for observer in self._observers:
            observer(done)


async def _answer(core: Core, question: Question, scope: Scope) -> Reply:
    """The answer; ClientGone, and the question cancelled, if the client leaves before it."""
    task = asyncio.current_task()
    assert task is not None
    gone = False

    def leave() -> None:
        nonlocal gone
        gone = True
        task.cancel()

    # Waiting for it in a task of its own costs as much as parsing the request.
    when_gone = scope["extensions"][WHEN_GONE]["call"]
    when_gone(leave)
    try:
        return await core.answer(question)
    except asyncio.CancelledError:
        if gone:
            raise ClientGone from None
        raise
    finally:
        when_gone(None)


def _headers(content: bytes, head: int | None, reply: Reply) -> list[tuple[bytes, bytes]]:
    headers = [
        (b"content-type", JSON if head is None else b"application/octet-stream"),
        (b"content-length", b"%d" % len(content)),
        (b"x-queue-time", b"%.3f" % (reply.queue_seconds * 1e3)),  # milliseconds
        (b"x-inference-time", b"%.3f" % (reply.compute_seconds * 1e3)),
    ]
    if head is not None:
        headers.append((HEADER_LENGTH, b"%d" % head))
    return headers


def _both(endpoint: Any, end: str = "", methods: list[str] | None = None) -> list[BaseRoute]:
    """The routes of a model's call, with a version and without."""
    end = f"/{end}" if end else ""
    return [
        Route(f"/v2/models/{{model}}{end}", endpoint, methods=methods),
        Route(f"/v2/models/{{model}}/versions/{{version}}{end}", endpoint, methods=methods),
    ]


def _health(core: Core) -> list[BaseRoute]:
    async def live(_: Request) -> Response:
        return _json({"live": True})

    async def ready(_: Request) -> Response:
        if core.ready():
            return _json({"live": True, "ready": True})
        return _not_ready(
            {"live": True, "ready": False}, "a model that is to be served is not ready"
        )

    return [Route("/v2/health/live", live), Route("/v2/health/ready", ready)]


def _inference(core: Core, safety: Safety) -> list[BaseRoute]:
    """Everything but the inference itself."""

    async def server(_: Request) -> Response:
        return _json(oip.server_metadata())

    async def model_ready(request: Request) -> Response:
        model, version = _names(request)
        if oip.is_ready(core, model, version):
            return _json({"name": model, "ready": True})
        return _not_ready({"name": model, "ready": False}, f"model {show(model)} is not ready")

    async def model_metadata(request: Request) -> Response:
        return _json(oip.model_metadata(core, *_names(request)))

    async def all_statistics(_: Request) -> Response:
        return _json(oip.statistics(core))

    async def model_statistics(request: Request) -> Response:
        return _json(oip.statistics(core, *_names(request)))

    async def index(request: Request) -> Response:
        ready = (await _read_object(request, safety)).get("ready", False)
        if type(ready) is not bool:
            raise refuse(f"ready is {show(ready)}; it has to be true or false")
        return _json(oip.index(core, ready))

    return [
        Route("/v2", server),
        Route("/v2/", server),
        *_both(model_ready, "ready"),
        Route("/v2/models/stats", all_statistics),
        *_both(model_statistics, "stats"),
        *_both(model_metadata),
        Route("/v2/repository/index", index, methods=["POST"]),
    ]


def _admin(core: Core, safety: Safety) -> list[BaseRoute]:
    def call(act: Callable[[str], Awaitable[None]]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            model = oip.check_name(request.path_params["model"])
            parameters = (await _read_object(request, safety)).get("parameters")
            oip.check_repository_parameters({} if parameters is None else parameters)
            await act(model)
            return Response()

        return endpoint

    path = "/v2/repository/models/{model}"
    return [
        Route(f"{path}/load", call(core.load), methods=["POST"]),
        Route(f"{path}/unload", call(core.unload), methods=["POST"]),
    ]


def _names(request: Request) -> tuple[str, str | None]:
    return request.path_params["model"], request.path_params.get("version")


async def _read_object(request: Request, safety: Safety) -> Mapping[str, Any]:
    """The body's JSON object; an empty body is an empty object."""
    headers = dict(request.scope["headers"])
    data = await http_body.read(headers, request.receive, safety.max_body_bytes)
    return http_json.read_object(data) if data else {}


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value), status, headers, "application/json")


def _not_ready(value: dict[str, Any], error: str) -> Response:
    return _json({**value, "error": error}, 503, {"Retry-After": str(round(RETRY_AFTER))})


def _failure_response(failure: Failure) -> Response:
    headers = {}
    if failure.reason is Reason.UNAVAILABLE:
        wait = RETRY_AFTER if failure.retry_after is None else failure.retry_after
        headers["Retry-After"] = str(max(1, math.ceil(wait)))
    if isinstance(failure, CloseAfter):
        headers["Connection"] = "close"
    return _json({"error": str(failure)}, STATUS[failure.reason], headers)


def _on_failure(_: Request, failure: Any) -> Response:
    return _failure_response(failure)


def _on_http_exception(request: Request, error: Any) -> Response:
    words = {
        404: f"there is nothing at {show(request.url.path)}",
        405: f"method {show(request.method)} is not allowed at {show(request.url.path)}",
    }
    message = words.get(error.status_code, error.detail)
    return _json({"error": message}, error.status_code, error.headers)


def _on_gone(_: Request, __: Exception) -> Response:
    return Response(status_code=STATUS[Reason.CANCELLED])


def _on_error(_: Request, __: Exception) -> Response:
    return _json(ERROR, 500)
