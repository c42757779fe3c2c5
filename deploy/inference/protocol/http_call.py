"""Calls over HTTP that ask a model: a body is read, becomes an inference request, and its answer a
body again. Those of other interfaces (OpenAI's, rerankers') are JSON objects."""

from __future__ import annotations

from typing import Any, Callable, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np
import orjson
from starlette.requests import Request as HttpRequest
from starlette.responses import Response as HttpResponse
from starlette.types import Receive, Scope, Send

from fleetbert.deploy.inference.messages import (
    Core,
    Failure,
    Reason,
    Response,
    State,
    Version,
    list_names,
    show,
)
from fleetbert.deploy.inference.ops import observe
from fleetbert.deploy.inference.protocol import http_body, http_json
from fleetbert.deploy.inference.protocol.http_body import HEADERS, SHARE
from fleetbert.deploy.inference.protocol.middleware import infer
from fleetbert.deploy.inference.protocol.tensors import Tensor, refuse
from fleetbert.deploy.inference.protocol.validation import RawRequest
from fleetbert.deploy.inference.settings import Safety

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
JSON = "application/json"
UNKNOWN = b"x-unknown-parameters"
SCORES, VECTORS, ANSWER = "scores", "embedding", "answer"  # outputs
ANSWERS = {SCORES: "scores of labels", VECTORS: "vectors", ANSWER: "answers in a context"}

Content = Tuple[bytes, List[Tuple[bytes, bytes]]]  # a body, and its headers but for its length


class Asked(NamedTuple):
    """An inference request to a model and version: what reads it, and what writes its answer."""

    model: str
    version: str | None
    read: Callable[[], RawRequest]
    write: Callable[[Response], Content]


class InferenceCall:
    """A bare ASGI application. ask: what a body asks for; Failure where that cannot be read."""

    def __init__(
        self,
        core: Core,
        safety: Safety,
        observers: Sequence[observe.Observer],
        ask: Callable[[Scope, bytes], Asked],
    ):
        self._core, self._safety, self._observers, self._ask = core, safety, observers, ask

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: Mapping[str, str] = scope[HEADERS]
        share, limit = scope[SHARE], self._safety.max_body_bytes
        request_id = headers.get("x-request-id", "")
        with observe.Observed("http", "200", _code_of, self._observers, request_id) as seen:
            body = await http_body.read(headers, receive, limit, share)
            seen.arrived()
            call = self._ask(scope, body)
            del body
            target = (call.model, call.version)
            answering = infer(self._core, self._safety, *target, call.read, seen, share)
            response = await http_body.unless_gone(answering, scope)
            content, reply_headers = call.write(response)
            seen.response = response
        reply_headers = [*reply_headers, (b"content-length", b"%d" % len(content))]
        await send({"type": "http.response.start", "status": 200, "headers": reply_headers})
        await send({"type": "http.response.body", "body": content})


def _code_of(error: BaseException) -> tuple[str, str]:
    if isinstance(error, Failure):
        return str(STATUS[error.reason]), str(error)
    return "500", repr(error)


def of_json(
    core: Core, read: Callable[[http_json.Json, Core], Asked]
) -> Callable[[Scope, bytes], Asked]:
    """For calls whose body is a JSON object, and whose path may name the model."""
    return lambda scope, body: read({**http_json.read_object(body), **scope["path_params"]}, core)


async def read_message(request: HttpRequest, safety: Safety) -> http_json.Json:
    """The body's JSON object; an empty body is an empty object."""
    headers = request.scope[HEADERS]
    limit, share = safety.max_body_bytes, request.scope[SHARE]
    data = await http_body.read(headers, request.receive, limit, share)
    return http_json.read_object(data) if data else {}


def as_json(value: object, unknown: str = "") -> Content:
    """unknown: the names of the fields that changed nothing."""
    content = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    headers = [(b"content-type", JSON.encode())]
    return content, [*headers, (UNKNOWN, unknown.encode())] if unknown else headers


def json_response(
    value: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> HttpResponse:
    return HttpResponse(orjson.dumps(value), status, headers, JSON)


def read_model(message: Mapping[str, Any]) -> tuple[str, str | None]:
    """Name and version of the field `model`: a name, or name/version."""
    name = message.get("model")
    if type(name) is not str or not name:
        raise refuse(f"model is {show(name)}; it has to be a name, which GET /v1/models lists")
    model, slash, version = name.partition("/")
    return model, version if slash else None


def find(
    message: Mapping[str, Any], core: Core, output: str | None = None
) -> tuple[str, str | None, Version]:
    """Name and version of the model that is named, or of the only one that answers with `output`.
    Failure where there is none, or the one that is named does not."""

    def is_able(version: Version) -> bool:
        return output is None or tells(version, output)

    able = {v.model for v in core.versions() if v.state is State.READY and is_able(v)}
    names, what = sorted(able), ANSWERS[output] if output else "anything"
    if message.get("model") is not None:
        model, version = read_model(message)
    elif len(names) == 1:
        model, version = names[0], None
    elif names:
        raise refuse(
            f"model is missing; name one of {list_names(names)} (below /models/NAME the path does)"
        )
    elif not core.ready():
        raise Failure(Reason.UNAVAILABLE, "the server's models are not loaded yet", 1.0)
    else:
        raise refuse(f"no model of this server answers with {what}")
    target = core.find(model, version)
    if not is_able(target):
        others = f"these do: {list_names(names)}" if names else "no model of this server does"
        task = target.task.replace("_", " ")
        raise refuse(
            f"model {target.model} does not answer with {what}: its task is {task}; {others}"
        )
    return model, version, target


def refuse_direction(message: Mapping[str, Any]) -> None:
    """Failure if texts are to be truncated otherwise than the model does it."""
    direction = message.get("truncation_direction")
    if direction not in (None, "right", "Right"):
        raise refuse(
            f"truncation_direction is {show(direction)}; the model itself says which side is cut: "
            "leave it out"
        )


def read_options(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The object `parameters`, empty where there is none; Hugging Face's clients may send null."""
    options = message.get("parameters")
    if options is not None and type(options) is not dict:
        raise refuse(f"parameters is {show(options)}; it has to be an object")
    return options or {}


def read_count(message: Mapping[str, Any], name: str) -> int | None:
    count = message.get(name)
    if count is not None and (type(count) is not int or count < 1):
        raise refuse(f"{name} is {show(count)}; it has to be a whole number from 1")
    return count


def read_flag(message: Mapping[str, Any], name: str, default: bool = False) -> bool:
    value = message.get(name)
    if value is not None and type(value) is not bool:
        raise refuse(f"{name} is {show(value)}; it has to be true or false")
    return default if value is None else value


def read_dimensions(message: Mapping[str, Any], version: Version) -> int | None:
    """How many numbers of each vector of this version are wanted; None: all."""
    dimensions = read_count(message, "dimensions")
    width = next(tensor.shape[-1] for tensor in version.outputs if tensor.name == VECTORS)
    if dimensions is not None and dimensions > width:
        raise refuse(
            f"dimensions is {show(dimensions)}; the vectors of model {version.model} have {width} "
            "numbers"
        )
    return dimensions


def shorten(vectors: np.ndarray, dimensions: int | None) -> np.ndarray:
    """The first numbers of each vector, which has length 1 again. [texts, numbers]"""
    if dimensions is None or dimensions >= vectors.shape[1]:
        return np.ascontiguousarray(vectors)
    vectors = vectors[:, :dimensions]
    # As tasks.vector_heads.unit, whose package loads what no server needs.
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.maximum(lengths, np.float32(1e-12))).astype(np.float32)


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
    return any(tensor.name == output for tensor in version.outputs)
