"""OpenAI's calls, for models that answer with vectors: its clients work as they are.

https://platform.openai.com/docs/api-reference/embeddings and .../models.
"""

from __future__ import annotations

import base64
import time
from typing import Sequence

from starlette.requests import Request as HttpRequest
from starlette.responses import Response as HttpResponse
from starlette.routing import BaseRoute, Route

from fleetbert.deploy.inference.messages import Core, Response, State, show
from fleetbert.deploy.inference.ops import observe
from fleetbert.deploy.inference.protocol import http_call, http_json
from fleetbert.deploy.inference.protocol.http_call import (
    VECTORS,
    Asked,
    InferenceCall,
    json_response,
)
from fleetbert.deploy.inference.protocol.tensors import refuse
from fleetbert.deploy.inference.protocol.validation import unknown_parameters
from fleetbert.deploy.inference.settings import Safety

PREFIX = "/v1/"
FIELDS = ("model", "input", "encoding_format", "dimensions")  # that are read
FORMATS = ("float", "base64")
OWNER = "fleetbert"
CODES = {401: "invalid_api_key", 404: "model_not_found"}  # of errors, by status


def routes(core: Core, safety: Safety, observers: Sequence[observe.Observer]) -> list[BaseRoute]:
    began = int(time.time())

    def describe(name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": began, "owned_by": OWNER}

    async def models(_: HttpRequest) -> HttpResponse:
        names = sorted(
            {version.model for version in core.versions() if version.state is State.READY}
        )
        return json_response({"object": "list", "data": [describe(name) for name in names]})

    async def model(request: HttpRequest) -> HttpResponse:
        name = request.path_params["model"]
        core.find(name)
        return json_response(describe(name))

    call = InferenceCall(core, safety, observers, http_call.of_json(core, read))
    return [
        Route("/v1/embeddings", call, methods=["POST"]),
        Route("/v1/models", models),
        Route("/v1/models/{model}", model),
    ]


def read(message: http_json.Json, core: Core) -> Asked:
    """POST /v1/embeddings; Failure BAD_REQUEST with the field that is wrong."""
    model, version, target = http_call.find(message, core, VECTORS)
    texts = message.get("input")
    texts = [texts] if type(texts) is str else texts
    if type(texts) is not list or not texts:
        raise refuse("input has to be a text or a list of texts, at least one")
    if type(texts[0]) in (int, list):
        raise refuse("input holds token ids, of another model's tokenizer; send texts")
    form = message.get("encoding_format")
    form = FORMATS[0] if form is None else form
    if form not in FORMATS:
        raise refuse(f"encoding_format is {show(form)}; it has to be {' or '.join(FORMATS)}")
    dimensions = http_call.read_dimensions(message, target)
    raw = http_call.of_texts(VECTORS, texts)
    unknown = unknown_parameters(raw._replace(parameters=message), FIELDS)
    return Asked(
        model,
        version,
        lambda: raw,
        lambda response: http_call.as_json(render(response, form, dimensions), unknown),
    )


def render(response: Response, form: str, dimensions: int | None) -> dict[str, object]:
    vectors = http_call.shorten(http_call.array(response, VECTORS), dimensions)
    rows: list[object] = list(vectors)
    if form == "base64":
        rows = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in vectors]
    data = [
        {"object": "embedding", "index": number, "embedding": row}
        for number, row in enumerate(rows)
    ]
    usage = {"prompt_tokens": response.tokens, "total_tokens": response.tokens}
    return {"object": "list", "data": data, "model": response.model, "usage": usage}


def error_body(status: int, message: str, known: bool = True) -> dict[str, object]:
    """An error as OpenAI's clients read it. known: there is something at the path."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    code = CODES.get(status) if known or status != 404 else "unknown_url"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
