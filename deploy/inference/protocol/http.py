"""The Open Inference Protocol v2 over HTTP: an ASGI application."""

from __future__ import annotations

import logging
import math
import re
from typing import Awaitable, Callable, Mapping, Sequence

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response as HttpResponse
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fleetbert.deploy.inference.messages import Core, Failure, Reason, Response, State, show
from fleetbert.deploy.inference.ops import observe
from fleetbert.deploy.inference.protocol import (
    http_body,
    http_json,
    http_openai,
    http_rerank,
    metadata,
    openapi,
)
from fleetbert.deploy.inference.protocol.admin import Caller, change
from fleetbert.deploy.inference.protocol.http_body import HEADERS, SHARE, ClientGone, CloseAfter
from fleetbert.deploy.inference.protocol.middleware import Middleware, infer
from fleetbert.deploy.inference.protocol.tensors import refuse
from fleetbert.deploy.inference.protocol.validation import RawRequest, unknown_parameters
from fleetbert.deploy.inference.settings import Admins, Safety

log = logging.getLogger(__name__)

STATUS = {
    Reason.BAD_REQUEST: 400,
    Reason.UNAUTHENTICATED: 401,
    Reason.FORBIDDEN: 403,
    Reason.NOT_FOUND: 404,
    Reason.TOO_LARGE: 413,
    Reason.UNAVAILABLE: 503,
    Reason.EXHAUSTED: 503,
    Reason.DEADLINE: 504,
    Reason.CANCELLED: 499,  # nginx's; nobody is there to read it
    Reason.INTERNAL: 500,
}
RETRY_AFTER = 1.0  # seconds, where a failure does not say
JSON = "application/json"
BINARY = "application/octet-stream"
BROKEN = "the server failed at this request; its log says why"
HEADER_LENGTH = "inference-header-content-length"
UNKNOWN = "x-unknown-parameters"
# For everyone, with or without a key: probes, and pages that hold nothing of the models.
OPEN = re.compile(r"/v2/health/\w+|/|/docs(/.*)?|/openapi\.json")

Endpoint = Callable[[HttpRequest], Awaitable[HttpResponse]]


def app(
    core: Core,
    safety: Safety,
    *,
    admins: Admins = "loopback",
    middleware: Middleware = Middleware(),  # noqa: B008  it cannot change
    pages: Sequence[BaseRoute] = (),
    observers: Sequence[observe.Observer] = (observe.count,),
) -> ASGIApp:
    """The calls of the protocol over `core`, for a port of `connections`.

    admins: who may load and unload. pages: further routes. observers: told of each inference
    request when it is done.
    """

    async def openapi_json(_: HttpRequest) -> HttpResponse:
        ready = (version for version in core.versions() if version.state is State.READY)
        # The document is for everyone: where a key is needed, it tells no names.
        has_keys = middleware.keys is not None
        models = [] if has_keys else sorted({version.model for version in ready})
        return _json(openapi.document(admin=admins != "nobody", api_key=has_keys, models=models))

    routes = [
        *_both(Infer(core, safety, observers), "infer", methods=["POST"]),  # first: it is frequent
        *_health(core),
        *_information(core, safety),
        *(_admin(core, safety, admins) if admins != "nobody" else ()),
        *http_openai.routes(core, safety, observers, _code_of),
        *http_rerank.routes(core, safety, observers, _code_of),
        Route("/openapi.json", openapi_json),
        *pages,
    ]
    return App(Router(routes, redirect_slashes=False), middleware)


class App:
    """Routes with the middleware before them; here every error becomes a status code."""

    def __init__(self, router: Router, middleware: Middleware):
        self._router, self._middleware = router, middleware

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        scope["app"], scope[HEADERS] = self, headers
        path = scope["path"]
        middleware = self._middleware
        around = middleware.around("http", f"{scope['method']} {path}", headers)
        with around as call, middleware.budget.share() as scope[SHARE]:

            async def send_numbered(message: Message) -> None:
                if message["type"] == "http.response.start":
                    call.code = str(message["status"])
                    number = (b"x-request-id", call.id.encode())
                    message = {**message, "headers": [*message["headers"], number]}
                await send(message)

            try:
                if not OPEN.fullmatch(path):
                    middleware.check_key(headers)
                await self._router(scope, receive, send_numbered)
            except ClientGone:
                call.code = str(STATUS[Reason.CANCELLED])
            except Exception as error:
                response = _error_response(scope, error)
                if not call.code:  # nothing was sent yet
                    await response(scope, receive, send_numbered)


def _error_response(scope: Scope, error: Exception) -> HttpResponse:
    headers = {}
    if isinstance(error, HTTPException):  # the router's
        path, method = show(scope["path"]), show(scope["method"])
        allowed = ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
        words = {
            404: f"there is nothing at {path}",
            405: f"method {method} is not allowed at {path}; use {allowed}",
        }
        message = words.get(error.status_code, error.detail)
        return _error(scope, message, error.status_code, error.headers)
    if not isinstance(error, Failure):
        log.error("HTTP request failed", exc_info=error)
        return _error(scope, BROKEN, 500)
    if error.reason in (Reason.UNAVAILABLE, Reason.EXHAUSTED):
        wait = RETRY_AFTER if error.retry_after is None else error.retry_after
        headers["Retry-After"] = str(max(1, math.ceil(wait)))
    if error.reason is Reason.UNAUTHENTICATED:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, CloseAfter):
        headers["Connection"] = "close"
    return _error(scope, str(error), STATUS[error.reason], headers)


def _error(
    scope: Scope, message: str, status: int, headers: Mapping[str, str] | None = None
) -> HttpResponse:
    """In the form of the call's own protocol."""
    if scope["path"] in http_rerank.PATHS:
        return _json(http_rerank.error_body(message), status, headers)
    if scope["path"].startswith(http_openai.PREFIX):
        return _json(http_openai.error_body(status, message), status, headers)
    return _json({"error": message}, status, headers)


def _code_of(error: BaseException) -> tuple[str, str]:
    """For observers."""
    if isinstance(error, Failure):
        return str(STATUS[error.reason]), str(error)
    return "500", repr(error)


class Infer:
    """POST .../infer, as a bare ASGI application."""

    def __init__(self, core: Core, safety: Safety, observers: Sequence[observe.Observer]):
        self._core, self._safety, self._observers = core, safety, observers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: Mapping[str, str] = scope[HEADERS]
        names = scope["path_params"]
        request_id = headers.get("x-request-id", "")
        with observe.Observed("http", "200", _code_of, self._observers, request_id) as observed:
            limit, share = self._safety.max_body_bytes, scope[SHARE]
            data = await http_body.read(headers, receive, limit, share)
            observed.arrived()
            body: http_json.Body | None = None

            def parse() -> RawRequest:
                nonlocal body, data
                parsed = http_json.parse(data, headers.get(HEADER_LENGTH))
                # What waits for its answer needs neither.
                data, body = b"", parsed._replace(request=parsed.request._replace(inputs=()))
                return parsed.request

            target = (names["model"], names.get("version"))
            answering = infer(self._core, self._safety, *target, parse, observed, share)
            response = await http_body.unless_gone(answering, scope)
            assert body is not None
            content, head = http_json.render(response, body)
            observed.response = response
        start = {
            "type": "http.response.start",
            "status": 200,
            "headers": _headers(content, head, response, unknown_parameters(body.request)),
        }
        await send(start)
        await send({"type": "http.response.body", "body": content})


def _headers(
    content: bytes, head: int | None, response: Response, unknown: str
) -> list[tuple[bytes, bytes]]:
    headers = [
        (b"content-type", (JSON if head is None else BINARY).encode()),
        (b"content-length", b"%d" % len(content)),
        (b"x-queue-time", b"%.3f" % (response.queue_seconds * 1e3)),  # milliseconds
        (b"x-inference-time", b"%.3f" % (response.compute_seconds * 1e3)),
    ]
    if head is not None:
        headers.append((HEADER_LENGTH.encode(), b"%d" % head))
    if unknown:
        headers.append((UNKNOWN.encode(), unknown.encode()))
    return headers


def _both(
    endpoint: Endpoint | ASGIApp, end: str = "", methods: list[str] | None = None
) -> list[BaseRoute]:
    """The routes of a model's call, with a version and without."""
    end = f"/{end}" if end else ""
    return [
        Route(f"/v2/models/{{model}}{end}", endpoint, methods=methods),
        Route(f"/v2/models/{{model}}/versions/{{version}}{end}", endpoint, methods=methods),
    ]


def _health(core: Core) -> list[BaseRoute]:
    async def live(_: HttpRequest) -> HttpResponse:
        if core.live():
            return _json({"live": True})
        return _not_ready({"live": False, "error": "no worker of a model can be started"})

    async def ready(_: HttpRequest) -> HttpResponse:
        if core.ready():
            return _json({"live": True, "ready": True})
        words = "a model that is to be served is not ready"
        return _not_ready({"live": True, "ready": False, "error": words})

    return [Route("/v2/health/live", live), Route("/v2/health/ready", ready)]


def _information(core: Core, safety: Safety) -> list[BaseRoute]:
    async def server(_: HttpRequest) -> HttpResponse:
        return _json(metadata.server_metadata())

    async def model_ready(request: HttpRequest) -> HttpResponse:
        model, version = _names(request)
        if metadata.is_ready(core, model, version):
            return _json({"name": model, "ready": True})
        words = f"model {show(model)} is not ready"
        return _not_ready({"name": model, "ready": False, "error": words})

    async def model_metadata(request: HttpRequest) -> HttpResponse:
        return _json(metadata.model_metadata(core, *_names(request)))

    async def model_config(request: HttpRequest) -> HttpResponse:
        return _json(metadata.model_config(core, *_names(request)))

    async def all_statistics(_: HttpRequest) -> HttpResponse:
        return _json(metadata.statistics(core))

    async def model_statistics(request: HttpRequest) -> HttpResponse:
        return _json(metadata.statistics(core, *_names(request)))

    async def index(request: HttpRequest) -> HttpResponse:
        ready = (await _read_object(request, safety)).get("ready", False)
        if not isinstance(ready, bool):
            raise refuse(f"ready is {show(ready)}; it has to be true or false")
        return _json(metadata.index(core, ready))

    return [
        Route("/v2", server),
        Route("/v2/", server),
        *_both(model_ready, "ready"),
        Route("/v2/models/stats", all_statistics),
        *_both(model_statistics, "stats"),
        *_both(model_metadata),
        *_both(model_config, "config"),
        Route("/v2/repository/index", index, methods=["POST"]),
    ]


def _admin(core: Core, safety: Safety, admins: Admins) -> list[BaseRoute]:
    def call(act: Callable[[str], Awaitable[None]]) -> Endpoint:
        async def endpoint(request: HttpRequest) -> HttpResponse:
            headers = request.scope[HEADERS]
            Caller(request.client.host if request.client else "", headers).check(admins)
            kind = headers.get("content-type", JSON)  # Triton's clients send none
            if kind.partition(";")[0].strip().lower() != JSON:  # a form's
                raise HTTPException(415, f"Content-Type is {show(kind)}; it has to be {JSON}")
            parameters = (await _read_object(request, safety)).get("parameters")
            model = request.path_params["model"]
            await change(act, model, {} if parameters is None else parameters)
            return HttpResponse()

        return endpoint

    path = "/v2/repository/models/{model}"
    return [
        Route(f"{path}/load", call(core.load), methods=["POST"]),
        Route(f"{path}/unload", call(core.unload), methods=["POST"]),
    ]


def _names(request: HttpRequest) -> tuple[str, str | None]:
    return request.path_params["model"], request.path_params.get("version")


async def _read_object(request: HttpRequest, safety: Safety) -> Mapping[str, object]:
    """The body's JSON object; an empty body is an empty object."""
    headers = request.scope[HEADERS]
    limit, share = safety.max_body_bytes, request.scope[SHARE]
    data = await http_body.read(headers, request.receive, limit, share)
    return http_json.read_object(data) if data else {}


def _json(
    value: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> HttpResponse:
    return HttpResponse(orjson.dumps(value), status, headers, JSON)


def _not_ready(value: Mapping[str, object]) -> HttpResponse:
    return _json(value, 503, {"Retry-After": str(round(RETRY_AFTER))})
