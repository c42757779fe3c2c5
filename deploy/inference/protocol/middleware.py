"""What comes before a protocol, the same for HTTP and gRPC: who asks, the
request's number, its line in the log, its span."""

from __future__ import annotations

import re
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Awaitable, Callable, ContextManager, Mapping, Sequence

import grpc
import orjson

from fleetbert.deploy.inference.ops.logs import REQUEST, Request, log
from fleetbert.deploy.inference.ops.pages import Page
from fleetbert.deploy.inference.protocol.auth import Keys
from fleetbert.deploy.inference.protocol.grpc_calls import Abort, Call, Handler
from fleetbert.deploy.inference.protocol.grpc_service import code_of

if TYPE_CHECKING:
    from fleetbert.deploy.inference.ops.tracing import Tracer

App = Callable[[Any, Any, Any], Awaitable[None]]  # ASGI

# For everyone, with or without a key: probes, and pages that hold nothing of the models.
OPEN = re.compile(r"/v2/health/\w+|/|/docs(/.*)?|/openapi\.json")
OPEN_RPC = re.compile(r"/inference\.GRPCInferenceService/Server(Live|Ready)|/grpc\.health\.v1\..*")

NO_KEY = "authorization: no valid API key; send `Authorization: Bearer KEY`"


class Front:
    """An ASGI application before `app` and `pages`."""

    def __init__(
        self,
        app: App,
        *,
        pages: Mapping[str, Page],
        keys: Keys | None = None,
        write_requests: bool = False,
        tracer: Tracer | None = None,
    ):
        self._app = app
        self._pages = pages
        self._keys = keys
        self._write = write_requests
        self._tracer = tracer

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope["headers"])
        path, method = scope["path"], scope["method"]
        request = Request(_text(headers.get(b"x-request-id")))
        token = REQUEST.set(request)
        number = [(b"x-request-id", request.id.encode())]
        status = 0

        async def numbered(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), *number]}
            await send(message)

        span: ContextManager[Any] = nullcontext()
        if self._tracer is not None:
            names = {name.decode("latin-1"): _text(value) or "" for name, value in headers.items()}
            span = self._tracer.request(f"{method} {path}", names, request.id)
        try:
            with span:
                if not (
                    self._keys is None
                    or OPEN.fullmatch(path)
                    or self._keys.known(_text(headers.get(b"authorization")))
                ):
                    await _refuse(numbered, 401, NO_KEY)
                elif path in self._pages:
                    await self._page(path, method, numbered)
                else:
                    await self._app(scope, receive, numbered)
        except Exception:  # with the request's number, which uvicorn's own line would not have
            log.exception("HTTP request failed")
            if not status:
                await _refuse(numbered, 500, "the server failed at this request; its log says why")
        finally:
            if self._write:
                request.write("http", f"{method} {path}", str(status or 499))
            REQUEST.reset(token)

    async def _page(self, path: str, method: str, send: Any) -> None:
        if method not in ("GET", "HEAD"):
            await _refuse(send, 405, f"{path}: method {method}; use GET", [(b"allow", b"GET")])
            return
        await self._pages[path]()({"type": "http", "method": method}, None, send)  # type: ignore[arg-type]


async def _refuse(
    send: Any, status: int, message: str, more: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    headers = [(b"content-type", b"application/json"), *more]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": orjson.dumps({"error": message})})


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")


class RpcFront:
    """The same before gRPC calls."""

    def __init__(
        self,
        *,
        keys: Keys | None = None,
        write_requests: bool = False,
        tracer: Tracer | None = None,
    ):
        self._keys = keys
        self._write = write_requests
        self._tracer = tracer

    def before(self, method: str, handler: Handler) -> Handler:
        """The handler of this method, called if the client may ask."""
        keys = None if OPEN_RPC.fullmatch(method) else self._keys
        watched = self._write or self._tracer is not None

        def begin(data: bytes, call: Call) -> Awaitable[bytes]:
            metadata = dict(call.metadata)
            if keys is not None and not keys.known(metadata.get("authorization")):
                raise Abort(grpc.StatusCode.UNAUTHENTICATED, NO_KEY)
            request = Request(metadata.get("x-request-id"))
            REQUEST.set(request)  # in the call's own context
            if watched:
                return self._watch(method, request, metadata, lambda: handler(data, call))
            return handler(data, call)

        return begin

    async def _watch(
        self,
        method: str,
        request: Request,
        metadata: Mapping[str, str],
        answer: Callable[[], Awaitable[bytes]],
    ) -> bytes:
        """Answer, with the request's span and its line in the log."""
        span: ContextManager[Any] = nullcontext()
        if self._tracer is not None:
            span = self._tracer.request(method, metadata, request.id)
        code = "CANCELLED"
        try:
            with span:
                reply = await answer()
            code = "OK"
            return reply
        except Exception as error:
            code = code_of(error)[0].name
            raise
        finally:
            if self._write:
                request.write("grpc", method, code)
