"""OpenAI's calls, for models that answer with vectors: its clients work as they are.

https://platform.openai.com/docs/api-reference/embeddings and .../models. A `model` is the name of
one that is served, or name/version.
"""

from __future__ import annotations

import base64
import time
from typing import Callable, NamedTuple, Sequence

import numpy as np
import orjson
from starlette.requests import Request as HttpRequest
from starlette.responses import Response as HttpResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from fleetbert.deploy.inference.messages import Core, Response, State, show
from fleetbert.deploy.inference.ops import observe
from fleetbert.deploy.inference.protocol import http_body, http_json
from fleetbert.deploy.inference.protocol.http_body import HEADERS, SHARE
from fleetbert.deploy.inference.protocol.middleware import infer
from fleetbert.deploy.inference.protocol.tensors import Tensor, refuse
from fleetbert.deploy.inference.protocol.validation import RawRequest
from fleetbert.deploy.inference.settings import Safety

PREFIX = "/v1/"
VECTORS = "embedding"  # the output
FORMATS = ("float", "base64")
OWNER = "fleetbert"
JSON = "application/json"
# `type` and `code` of an error, by status. Clients of OpenAI look at the status first.
CODES = {401: "invalid_api_key", 404: "model_not_found"}

CodeOf = Callable[[BaseException], "tuple[str, str]"]


class Wanted(NamedTuple):
    """A request for vectors: of which model and version, in which of FORMATS; dimensions: the first
    numbers of each; None: all."""

    model: str
    version: str | None
    raw: RawRequest
    format: str
    dimensions: int | None


def routes(
    core: Core, safety: Safety, observers: Sequence[observe.Observer], code_of: CodeOf
) -> list[BaseRoute]:
    """code_of: of an error, for observers."""
    began = int(time.time())

    def describe(name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": began, "owned_by": OWNER}

    def names() -> list[str]:
        return sorted({one.model for one in core.versions() if one.state is State.READY})

    async def models(_: HttpRequest) -> HttpResponse:
        return _json({"object": "list", "data": [describe(name) for name in names()]})

    async def model(request: HttpRequest) -> HttpResponse:
        name = request.path_params["model"]
        core.find(name)
        return _json(describe(name))

    embeddings = Embeddings(core, safety, observers, code_of)
    return [
        Route("/v1/embeddings", embeddings, methods=["POST"]),
        Route("/v1/models", models),
        Route("/v1/models/{model}", model),
    ]


class Embeddings:
    """POST /v1/embeddings, as a bare ASGI application."""

    def __init__(
        self,
        core: Core,
        safety: Safety,
        observers: Sequence[observe.Observer],
        code_of: CodeOf,
    ):
        self._core, self._safety = core, safety
        self._observers, self._code_of = observers, code_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, share = scope[HEADERS], scope[SHARE]
        request_id = headers.get("x-request-id", "")
        with observe.Observed("http", "200", self._code_of, self._observers, request_id) as seen:
            limit = self._safety.max_body_bytes
            wanted = parse(await http_body.read(headers, receive, limit, share))
            seen.arrived()
            width = self._width(wanted)
            target = (wanted.model, wanted.version)
            answering = infer(self._core, self._safety, *target, lambda: wanted.raw, seen, share)
            response = await http_body.unless_gone(answering, scope)
            content = render(response, wanted, width)
            seen.response = response
        await _send(send, content)

    def _width(self, wanted: Wanted) -> int:
        """Of the vectors; Failure BAD_REQUEST if the model gives none, or shorter ones."""
        found = self._core.find(wanted.model, wanted.version)
        width = next((tensor.shape[-1] for tensor in found.outputs if tensor.name == VECTORS), None)
        if width is None:
            task = found.task.replace("_", " ")
            raise refuse(f"model {found.model} answers with no vectors: its task is {task}")
        if wanted.dimensions is not None and wanted.dimensions > width:
            raise refuse(
                f"dimensions is {show(wanted.dimensions)}; the vectors of model {found.model} have "
                f"{width} numbers"
            )
        return width


def parse(body: bytes) -> Wanted:
    """Failure BAD_REQUEST with the field that is wrong."""
    message = http_json.read_object(body)
    model, version = read_model(message)
    texts = message.get("input")
    texts = [texts] if type(texts) is str else texts
    if type(texts) is not list or not texts:
        raise refuse("input has to be a text or a list of texts, at least one")
    if type(texts[0]) in (int, list):
        raise refuse("input holds token ids, of another model's tokenizer; send texts")
    form = message.get("encoding_format") or FORMATS[0]
    if form not in FORMATS:
        raise refuse(f"encoding_format is {show(form)}; it has to be {' or '.join(FORMATS)}")
    dimensions = message.get("dimensions")
    if dimensions is not None and (type(dimensions) is not int or dimensions < 1):
        raise refuse(f"dimensions is {show(dimensions)}; it has to be a whole number from 1")
    raw = RawRequest("", {}, [Tensor("text", "BYTES", [len(texts)], texts)], [VECTORS])
    return Wanted(model, version, raw, form, dimensions)


def read_model(message: http_json.Json) -> tuple[str, str | None]:
    """Name and version of the field `model`."""
    name = message.get("model")
    if type(name) is not str or not name:
        raise refuse("model is missing; GET /v1/models tells the names")
    model, slash, version = name.partition("/")
    return model, version if slash else None


def render(response: Response, wanted: Wanted, width: int) -> bytes:
    """The answer's body. Vectors that are cut have length 1 again."""
    vectors = response.outputs[VECTORS]
    assert isinstance(vectors, np.ndarray)
    if wanted.dimensions is not None and wanted.dimensions < width:
        vectors = vectors[:, : wanted.dimensions]
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = (vectors / np.maximum(lengths, np.float32(1e-12))).astype(np.float32)
    rows: list[object] = list(np.ascontiguousarray(vectors))
    if wanted.format == "base64":
        rows = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in vectors]
    data = [
        {"object": "embedding", "index": number, "embedding": row}
        for number, row in enumerate(rows)
    ]
    usage = {"prompt_tokens": response.tokens, "total_tokens": response.tokens}
    message = {"object": "list", "data": data, "model": response.model, "usage": usage}
    return orjson.dumps(message, option=orjson.OPT_SERIALIZE_NUMPY)


def error_body(status: int, message: str) -> dict[str, object]:
    """An error as OpenAI's clients read it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    code = CODES.get(status)
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


async def _send(send: Send, content: bytes) -> None:
    headers = [(b"content-type", JSON.encode()), (b"content-length", b"%d" % len(content))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def _json(value: object) -> HttpResponse:
    return HttpResponse(orjson.dumps(value), media_type=JSON)
