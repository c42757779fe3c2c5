"""POST /question-answering: a question and a context, as Hugging Face's inference API takes them.

https://huggingface.co/docs/inference-providers/tasks/question-answering
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import orjson
from starlette.routing import BaseRoute, Route

from fleetbert.deploy.inference.messages import Core, Response, show
from fleetbert.deploy.inference.ops import observe
from fleetbert.deploy.inference.protocol import http_call, http_json
from fleetbert.deploy.inference.protocol.http_call import ANSWER, Asked, Content, InferenceCall
from fleetbert.deploy.inference.protocol.tensors import Tensor, refuse
from fleetbert.deploy.inference.protocol.validation import (
    QUESTION,
    RawRequest,
    unknown_parameters,
)
from fleetbert.deploy.inference.settings import Safety

PATH = "/question-answering"
FIELDS = ("model", "inputs", "parameters", "top_k", "handle_impossible_answer")


def routes(core: Core, safety: Safety, observers: Sequence[observe.Observer]) -> list[BaseRoute]:
    call = InferenceCall(core, safety, observers, http_call.of_json(core, read))
    return [Route(prefix + PATH, call, methods=["POST"]) for prefix in ("", "/models/{model}")]


def read(message: http_json.Json, core: Core) -> Asked:
    """Failure BAD_REQUEST with the field that is wrong.

    top_k: how many of the likeliest answers to list; 1, the usual, gives one that stands alone.
    handle_impossible_answer: whether none may be the answer; the model decides where it is left
    out. No answer is the empty text.
    """
    inputs, options = message.get("inputs"), http_call.read_options(message)
    if type(inputs) is not dict:
        raise refuse(f"inputs is {show(inputs)}; it has to be an object of question and context")
    for name in QUESTION:
        if type(inputs.get(name)) is not str:
            raise refuse(f"inputs.{name} is {show(inputs.get(name))}; it has to be a text")
    most = http_call.read_count(options, "top_k") or 1
    may_lack = options.get("handle_impossible_answer")
    if may_lack is not None:
        may_lack = http_call.read_flag(options, "handle_impossible_answer")
    model, version, _ = http_call.find(message, core, ANSWER)
    tensors = [Tensor(name, "BYTES", [1], [inputs[name]]) for name in QUESTION]
    raw = RawRequest("", {}, tensors, [ANSWER])
    unknown = unknown_parameters(raw._replace(parameters={**message, **options}), FIELDS)

    def write(response: Response) -> Content:
        answer = orjson.loads(response.outputs[ANSWER][0])
        candidates = answer.pop("n_best")
        if may_lack is None:
            candidates = [answer, *(other for other in candidates if other != answer)]
        elif not may_lack:
            candidates = [candidate for candidate in candidates if candidate["text"] is not None]
        candidates = candidates or [answer]  # the context has no tokens
        answers = [_as_theirs(candidate) for candidate in candidates[:most]]
        return http_call.as_json(answers[0] if most == 1 else answers, unknown)

    return Asked(model, version, lambda: raw, write)


def _as_theirs(candidate: Mapping[str, Any]) -> dict[str, object]:
    has_text = candidate["text"] is not None
    return {
        "answer": candidate["text"] or "",
        "score": candidate["score"],
        "start": candidate["start"] if has_text else 0,
        "end": candidate["end"] if has_text else 0,
    }
