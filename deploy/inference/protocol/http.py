"""The Open Inference Protocol v2 over HTTP: an ASGI application."""

from __future__ import annotations

import functools
import logging
import math
import re
from typing import Awaitable, Callable, Mapping, Sequence

from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as HttpRequest
from starlette.responses import Response as HttpResponse
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fleetbert.deploy.inference.messages import Core, Failure, Reason, Response, State, show
from fleetbert.deploy.inference.ops import observe
from fleetbert.deploy.inference.protocol import (
    http_json,
    http_openai,
    http_questions,
    http_rerank,
    http_tei,
    metadata,
    openapi,
)
from fleetbert.deploy.inference.protocol.admin import Caller, change
from fleetbert.deploy.inference.protocol.http_body import HEADERS, SHARE, CloseAfter
from fleetbert.deploy.inference.protocol.http_call import (
    JSON,
    STATUS,
    UNKNOWN,
    Asked,
    Content,
    InferenceCall,
    json_response,
    read_message,
)
from fleetbert.deploy.inference.protocol.middleware import Middleware
from fleetbert.deploy.inference.protocol.tensors import refuse
from fleetbert.deploy.inference.protocol.validation import RawRequest, unknown_parameters
from fleetbert.deploy.inference.settings import Admins, Batching, Safety

log = logging.getLogger(__name__)

RETRY_AFTER = 1.0  # seconds, where a failure does not say
BINARY = b"application/octet-stream"
BROKEN = "the server failed at this request; its log says why"
HEADER_LENGTH = "inference-header-content-length"
TIMES = ("x-queue-time", "x-inference-time")  # milliseconds
# To scripts of other sites' pages, beside what browsers show them anyway.
EXPOSED = (HEADER_LENGTH, UNKNOWN.decode(), "retry-after", "x-request-id", *TIMES)
# For everyone, with or without a key: probes, and pages that hold nothing of the models.
OPEN = re.compile(r"/v2/health/\w+|/health|/|/docs(/.*)?|/openapi\.json")

Endpoint = Callable[[HttpRequest], Awaitable[HttpResponse]]


def app(
    core: Core,
    safety: Safety,
    *,
    admins: Admins = "loopback",
    middleware: Middleware = Middleware(),  # noqa: B008  it cannot change
    pages: Sequence[BaseRoute] = (),
    observers: Sequence[observe.Observer] = (observe.count,),
    batch_tokens: int = Batching().batch_tokens,
) -> ASGIApp:
    """The calls of the protocol over `core`, for a port of `connections`.

    admins: who may load and unload. pages: further routes. observers: told of each inference
    request when it is done. batch_tokens: as clients are told.
    """

    async def openapi_json(_: HttpRequest) -> HttpResponse:
        ready = (version for version in core.versions() if version.state is State.READY)
        # The document is for everyone: where a key is needed, it tells no names.
        has_keys = middleware.keys is not None
        models = [] if has_keys else sorted({version.model for version in ready})
        return json_response(
            openapi.document(admin=admins != "nobody", api_key=has_keys, models=models)
        )

    routes = [
        *_both(InferenceCall(core, safety, observers, _ask), "infer", ["POST"]),  # it is frequent
        *_health(core),
        *_information(core, safety),
        *(_admin(core, safety, admins) if admins != "nobody" else ()),
        *http_openai.routes(core, safety, observers),
        *http_rerank.routes(core, safety, observers),
        *http_questions.routes(core, safety, observers),
        *http_tei.routes(core, safety, observers, batch_tokens),
        Route("/openapi.json", openapi_json),
        *pages,
    ]
    application = App(Router(routes, redirect_slashes=False), middleware)
    if not safety.cors_origins:
        return application
    return CORSMiddleware(
        application,
        allow_origins=safety.cors_origins,
        allow_methods=("GET", "POST"),
        allow_headers=("*",),
        expose_headers=EXPOSED,
    )


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
    if scope["path"] in http_rerank.PATHS or http_tei.PATHS.fullmatch(scope["path"]):
        return json_response(
            {**http_tei.error_body(status, message), "message": message}, status, headers
        )
    if scope["path"].startswith(http_openai.PREFIX):
        known = "endpoint" in scope
        return json_response(http_openai.error_body(status, message, known), status, headers)
    return json_response({"error": message}, status, headers)


def _ask(scope: Scope, data: bytes) -> Asked:
    """What POST .../infer asks for."""
    names, header_length = scope["path_params"], scope[HEADERS].get(HEADER_LENGTH)
    body: http_json.Body | None = None

    def read() -> RawRequest:
        nonlocal body, data
        parsed = http_json.parse(data, header_length)
        # What waits for its answer needs neither.
        data, body = b"", parsed._replace(request=parsed.request._replace(inputs=()))
        return parsed.request

    def write(response: Response) -> Content:
        assert body is not None
        content, head = http_json.render(response, body)
        headers = [
            (b"content-type", JSON.encode() if head is None else BINARY),
            (TIMES[0].encode(), b"%.3f" % (response.queue_seconds * 1e3)),
            (TIMES[1].encode(), b"%.3f" % (response.compute_seconds * 1e3)),
        ]
        if head is not None:
            headers.append((HEADER_LENGTH.encode(), b"%d" % head))
        unknown = unknown_parameters(body.request)
        if unknown:
            headers.append((UNKNOWN, unknown.encode()))
        return content, headers

    return Asked(names["model"], names.get("version"), read, write)


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
            return json_response({"live": True})
        return _not_ready({"live": False, "error": "no worker of a model can be started"})

    async def ready(_: HttpRequest) -> HttpResponse:
        if core.ready():
            return json_response({"live": True, "ready": True})
        words = "a model that is to be served is not ready"
        return _not_ready({"live": True, "ready": False, "error": words})

    return [
        Route("/v2/health/live", live),
        Route("/v2/health/ready", ready),
        Route("/health", ready),  # text-embeddings-inference's
    ]


def _telling(tell: Callable[..., object]) -> Endpoint:
    """What it says of the model and version that the path names, if it does."""

    async def endpoint(request: HttpRequest) -> HttpResponse:
        return json_response(tell(**request.path_params))

    return endpoint


def _information(core: Core, safety: Safety) -> list[BaseRoute]:
    async def model_ready(request: HttpRequest) -> HttpResponse:
        model = request.path_params["model"]
        if metadata.is_ready(core, **request.path_params):
            return json_response({"name": model, "ready": True})
        words = f"model {show(model)} is not ready"
        return _not_ready({"name": model, "ready": False, "error": words})

    async def index(request: HttpRequest) -> HttpResponse:
        ready = (await read_message(request, safety)).get("ready", False)
        if not isinstance(ready, bool):
            raise refuse(f"ready is {show(ready)}; it has to be true or false")
        return json_response(metadata.index(core, ready))

    server = _telling(metadata.server_metadata)
    statistics = _telling(functools.partial(metadata.statistics, core))
    return [
        Route("/v2", server),
        Route("/v2/", server),
        *_both(model_ready, "ready"),
        Route("/v2/models/stats", statistics),
        *_both(statistics, "stats"),
        *_both(_telling(functools.partial(metadata.model_metadata, core))),
        *_both(_telling(functools.partial(metadata.model_config, core)), "config"),
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
            parameters = (await read_message(request, safety)).get("parameters")
            model = request.path_params["model"]
            await change(act, model, {} if parameters is None else parameters)
            return HttpResponse()

        return endpoint

    path = "/v2/repository/models/{model}"
    return [
        Route(f"{path}/load", call(core.load), methods=["POST"]),
        Route(f"{path}/unload", call(core.unload), methods=["POST"]),
    ]


def _not_ready(value: Mapping[str, object]) -> HttpResponse:
    return json_response(value, 503, {"Retry-After": str(round(RETRY_AFTER))})
