"""Calls of other interfaces (OpenAI's, rerankers') for the models that are served: a JSON object is
read, becomes an inference request, and its answer JSON."""

from __future__ import annotations

from typing import Callable, Mapping, NamedTuple, Sequence, Tuple

import numpy as np
import orjson
from starlette.types import Receive, Scope, Send

from fleetbert.deploy.inference.messages import Core, Response, Version
from fleetbert.deploy.inference.ops import observe
from fleetbert.deploy.inference.protocol import http_body, http_json
from fleetbert.deploy.inference.protocol.http_body import HEADERS, SHARE
from fleetbert.deploy.inference.protocol.middleware import infer
from fleetbert.deploy.inference.protocol.tensors import Tensor, refuse
from fleetbert.deploy.inference.protocol.validation import RawRequest
from fleetbert.deploy.inference.settings import Safety

JSON = "application/json"
# Of an error, for observers: its code and words.
CodeOf = Callable[[BaseException], Tuple[str, str]]


class Asked(NamedTuple):
    """An inference request to a model and version, and what makes the body of its answer."""

    model: str
    version: str | None
    raw: RawRequest
    render: Callable[[Response], object]


class JsonCall:
    """A bare ASGI application; read: from the message. Failure where it cannot be asked."""

    def __init__(
        self,
        core: Core,
        safety: Safety,
        observers: Sequence[observe.Observer],
        code_of: CodeOf,
        read: Callable[[http_json.Json, Core], Asked],
    ):
        self._core, self._safety, self._read = core, safety, read
        self._observers, self._code_of = observers, code_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: Mapping[str, str] = scope[HEADERS]
        share, limit = scope[SHARE], self._safety.max_body_bytes
        request_id = headers.get("x-request-id", "")
        with observe.Observed("http", "200", self._code_of, self._observers, request_id) as seen:
            body = await http_body.read(headers, receive, limit, share)
            seen.arrived()
            asked = self._read(http_json.read_object(body), self._core)
            del body
            target = (asked.model, asked.version)
            answering = infer(self._core, self._safety, *target, lambda: asked.raw, seen, share)
            response = await http_body.unless_gone(answering, scope)
            content = orjson.dumps(asked.render(response), option=orjson.OPT_SERIALIZE_NUMPY)
            seen.response = response
        told = [(b"content-type", JSON.encode()), (b"content-length", b"%d" % len(content))]
        await send({"type": "http.response.start", "status": 200, "headers": told})
        await send({"type": "http.response.body", "body": content})


def read_model(message: http_json.Json) -> tuple[str, str | None]:
    """Name and version of the field `model`: a name, or name/version."""
    name = message.get("model")
    if type(name) is not str or not name:
        raise refuse("model is missing; GET /v1/models tells the names")
    model, slash, version = name.partition("/")
    return model, version if slash else None


def of_texts(output: str, texts: list[object], pairs: list[object] | None = None) -> RawRequest:
    """A request for one output of texts, or of pairs, which are checked later."""
    inputs = [Tensor("text", "BYTES", [len(texts)], texts)]
    if pairs is not None:
        inputs.append(Tensor("text_pair", "BYTES", [len(pairs)], pairs))
    return RawRequest("", {}, inputs, [output])


def array(response: Response, output: str) -> np.ndarray:
    """An output that is an array [texts, ...]."""
    values = response.outputs[output]
    assert isinstance(values, np.ndarray)
    return values


def tells(version: Version, output: str) -> bool:
    """Whether it has the output."""
    return any(tensor.name == output for tensor in version.outputs)
