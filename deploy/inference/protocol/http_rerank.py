"""Rerankers' calls, for models that answer a pair (a query and a document) with a number, and for
models of vectors, whose cosines rank.

With `texts` as text-embeddings-inference has it, with `documents` as Cohere: best ones first.
https://huggingface.github.io/text-embeddings-inference and https://docs.cohere.com/reference/rerank
"""

from __future__ import annotations

from typing import Sequence

import numpy as np
from starlette.routing import BaseRoute, Route

from fleetbert.deploy.inference.messages import Core, Response, State, Version, list_names, show
from fleetbert.deploy.inference.ops import observe
from fleetbert.deploy.inference.protocol import http_call, http_json
from fleetbert.deploy.inference.protocol.http_call import VECTORS, Asked, Content, InferenceCall
from fleetbert.deploy.inference.protocol.tensors import refuse
from fleetbert.deploy.inference.protocol.validation import unknown_parameters
from fleetbert.deploy.inference.settings import Safety

PATHS = ("/rerank", "/v1/rerank", "/v2/rerank")  # the latter two are Cohere's
FLAGS = ("return_text", "return_documents", "raw_scores")
TRUNCATION = ("truncate", "truncation_direction")
FIELDS = ("model", "query", "texts", "documents", "top_n", *TRUNCATION, *FLAGS)  # that are read
VALUES = "values"  # the output


def routes(core: Core, safety: Safety, observers: Sequence[observe.Observer]) -> list[BaseRoute]:
    call = InferenceCall(core, safety, observers, http_call.of_json(core, read))
    return [Route(path, call, methods=["POST"]) for path in PATHS]


def read(message: http_json.Json, core: Core) -> Asked:
    """Failure BAD_REQUEST with the field that is wrong."""
    query = message.get("query")
    if type(query) is not str:
        raise refuse(f"query is {show(query)}; it has to be a text")
    if "texts" in message and "documents" in message:
        raise refuse("texts and documents are both given; send one or the other")
    field = "texts" if "texts" in message else "documents"
    given = message.get(field)
    if type(given) is not list or not given:
        raise refuse(f"{field} has to be a list of texts, at least one")
    documents = given
    if field == "documents":
        documents = [
            document.get("text") if type(document) is dict else document for document in given
        ]
    for number, text in enumerate(documents):
        if type(text) is not str:
            raise refuse(
                f"{field}[{number}] is {show(given[number])}; it has to be a text"
                + (", or an object with a text in `text`" if field == "documents" else "")
            )
    most = http_call.read_count(message, "top_n")
    flags = [http_call.read_flag(message, name) for name in FLAGS]
    http_call.refuse_direction(message)
    model, version, output = _model(message, core)
    if output == VECTORS:
        raw = http_call.of_texts(VECTORS, [query, *documents])
    else:
        raw = http_call.of_texts(VALUES, [query] * len(documents), documents)
    raw = raw._replace(parameters={"truncate": http_call.read_flag(message, "truncate", True)})
    unknown = unknown_parameters(raw._replace(parameters=message), FIELDS)
    score, inside = ("score", "text") if field == "texts" else ("relevance_score", "document")

    def write(response: Response) -> Content:
        values = http_call.array(response, output).astype(np.float64)
        if output == VECTORS:
            values = values[1:] @ values[0]
        raw_scores = flags[2] or output == VECTORS
        scores = values if raw_scores else 0.5 * (1 + np.tanh(0.5 * values))
        order = np.argsort(-values, kind="stable").tolist()[:most]
        ranked: list[http_json.Json] = [{"index": n, score: float(scores[n])} for n in order]
        for row in ranked if any(flags[:2]) else ():
            text = documents[row["index"]]
            row[inside] = text if field == "texts" else {"text": text}
        if field == "texts":
            return http_call.as_json(ranked, unknown)
        meta = {"billed_units": {"search_units": 1}}
        return http_call.as_json({"results": ranked, "meta": meta}, unknown)

    return Asked(model, version, lambda: raw, write)


def _model(message: http_json.Json, core: Core) -> tuple[str, str | None, str]:
    """The one that is named, or the only one that ranks: the only one with a number for pairs, and
    where there is none, with vectors. And its output that is read."""
    able: dict[str, set[str]] = {VALUES: set(), VECTORS: set()}
    for served in core.versions():
        output = _output(served)
        if served.state is State.READY and output is not None:
            able[output].add(served.model)
    names = sorted(able[VALUES] | able[VECTORS])
    if message.get("model") is None:
        output = VALUES if able[VALUES] else VECTORS
        if len(able[output]) != 1:
            raise refuse(f"model is missing; name one that ranks: {list_names(names)}")
        (name,) = able[output]
        return name, None, output
    model, version = http_call.read_model(message)
    target = core.find(model, version)
    output = _output(target)
    if output is None:
        raise refuse(
            f"model {target.model} cannot rank: it has neither a number for a pair of texts nor "
            f"vectors; these can: {list_names(names)}"
        )
    return model, version, output


def _output(version: Version) -> str | None:
    """What ranks; None: it does not."""
    if version.pair and http_call.tells(version, VALUES):
        return VALUES
    return VECTORS if http_call.tells(version, VECTORS) else None
