"""The calls of text-embeddings-inference, whose clients work as they are, and a plain one.

Each is there twice: for the only model that can answer it, and below /models/{model}.
https://huggingface.github.io/text-embeddings-inference
"""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, Mapping, Sequence

import numpy as np
import orjson
from starlette.requests import Request as HttpRequest
from starlette.responses import Response as HttpResponse
from starlette.routing import BaseRoute, Route

import fleetbert
from fleetbert.data.written import fault_of
from fleetbert.deploy.inference.messages import Core, Failure, Reason, Response, Version, show
from fleetbert.deploy.inference.ops import observe
from fleetbert.deploy.inference.protocol import http_call, http_json, http_rerank, tensors
from fleetbert.deploy.inference.protocol.http_call import (
    ANSWER,
    SCORES,
    VECTORS,
    Asked,
    Content,
    InferenceCall,
)
from fleetbert.deploy.inference.protocol.tensors import Tensor, refuse
from fleetbert.deploy.inference.protocol.validation import (
    PARAMETERS,
    QUESTION,
    RawRequest,
    unknown_parameters,
)
from fleetbert.deploy.inference.settings import Safety

MODEL = "/models/{model}"
LOGITS = "logits"
LABELS = ("labels", "candidate_labels")  # the latter is Hugging Face's
TEMPLATE = "hypothesis_template"  # Hugging Face's sentence around a label
PATHS = re.compile(r"(/models/[^/]+)?(/(embed|predict|similarity|rerank|tokenize|info))?")
COMMON = ("model", "inputs", "truncate", "truncation_direction", "prompt_name")
# Characters of a request for tokens. Each may be a token, which takes 800 bytes until it is sent;
# the process that listens writes them all.
TOKENIZED = 1 << 17
# Kinds of errors, by status; all others are the server's.
KINDS = {503: "Overloaded", 500: "Backend", 504: "Backend"}

Prediction = Dict[str, object]


def routes(
    core: Core, safety: Safety, observers: Sequence[observe.Observer], batch_tokens: int
) -> list[BaseRoute]:
    def asking(read: Callable[[http_json.Json, Core], Asked]) -> InferenceCall:
        return InferenceCall(core, safety, observers, http_call.of_json(core, read))

    async def tokenize(request: HttpRequest) -> HttpResponse:
        message = {**await http_call.read_message(request, safety), **request.path_params}
        model, version, _ = http_call.find(message, core)
        given = read_texts(message.get("inputs"))
        _refuse_prompt(message)
        texts = tensors.read_texts(
            Tensor("inputs", "BYTES", [len(given)], given), safety.max_texts, safety.max_text_bytes
        )
        special = http_call.read_flag(message, "add_special_tokens", default=True)
        size = sum(map(len, texts))
        if size > TOKENIZED:
            raise Failure(
                Reason.TOO_LARGE,
                f"the texts have {size} characters; {TOKENIZED} are tokenized at a time: "
                "send fewer",
            )
        tokens = await core.tokenize(model, version, texts)
        kept = [[token for token in row if special or not token["special"]] for row in tokens]
        return HttpResponse(orjson.dumps(kept), media_type=http_call.JSON)

    async def info(request: HttpRequest) -> HttpResponse:
        words = {**request.query_params, **request.path_params}
        version = http_call.find(words, core)[2]
        return http_call.json_response(describe(version, safety, batch_tokens))

    answering: Mapping[str, Any] = {
        "/embed": asking(read_embed),
        "/predict": asking(read_predict),
        "/similarity": asking(read_similarity),
        "/tokenize": tokenize,
    }
    rerank = asking(http_rerank.read)  # without a model http_rerank has it
    routes: list[BaseRoute] = [Route(MODEL, asking(read_plain), methods=["POST"])]
    routes.append(Route(f"{MODEL}/rerank", rerank, methods=["POST"]))
    for prefix in ("", MODEL):
        routes.append(Route(f"{prefix}/info", info))
        for path, call in answering.items():
            routes.append(Route(prefix + path, call, methods=["POST"]))
    return routes


def error_body(status: int, message: str) -> dict[str, object]:
    return {"error": message, "error_type": KINDS.get(status, "Validation")}


def read_embed(message: http_json.Json, core: Core) -> Asked:
    """POST /embed: a vector for each text. Failure BAD_REQUEST with the field that is wrong."""
    model, version, target = http_call.find(message, core, VECTORS)
    texts = read_texts(message.get("inputs"))
    dimensions = http_call.read_dimensions(message, target)
    if not http_call.read_flag(message, "normalize", default=True):
        raise refuse("normalize is false, but the vectors of this server have length 1")
    raw = _request(VECTORS, texts, None, message)
    unknown = unknown_parameters(
        raw._replace(parameters=message), (*COMMON, "normalize", "dimensions")
    )

    def write(response: Response) -> Content:
        vectors = http_call.shorten(http_call.array(response, VECTORS), dimensions)
        return http_call.as_json(list(vectors), unknown)

    return Asked(model, version, lambda: raw, write)


def read_predict(message: http_json.Json, core: Core) -> Asked:
    """POST /predict: the labels of a text, of a pair, or of a list of [text] and [text, text]."""
    options = http_call.read_options(message)
    if any(name in options for name in LABELS):
        return _read_zero_shot(message, options, core)
    model, version, target = http_call.find(message, core, SCORES)
    texts, pairs, single = _read_inputs(message.get("inputs"))
    output = LOGITS if http_call.read_flag(message, "raw_scores") else SCORES
    raw = _request(output, texts, pairs, message)
    unknown = unknown_parameters(raw._replace(parameters=message), (*COMMON, "raw_scores"))

    def write(response: Response) -> Content:
        rows = [_sorted(target.labels, row) for row in http_call.array(response, output)]
        return http_call.as_json(rows[0] if single else rows, unknown)

    return Asked(model, version, lambda: raw, write)


def _read_zero_shot(message: http_json.Json, options: Mapping[str, Any], core: Core) -> Asked:
    """The same by a model of vectors, of the labels in `options`, the request's parameters. As in
    Hugging Face's API a list of texts is that, not a pair."""
    given = next(options[name] for name in LABELS if name in options)
    if type(given) is not list or len(given) < 2 or not all(type(name) is str for name in given):
        raise refuse(f"parameters.labels is {show(given)}; it has to be a list of two or more")
    if len(set(given)) != len(given):
        raise refuse("parameters.labels names a label twice")
    template = options.get(TEMPLATE)
    if template is not None and (type(template) is not str or template.count("{}") != 1):
        raise refuse(
            f"parameters.{TEMPLATE} is {show(template)}; it has to be a text with one {{}}"
        )
    if http_call.read_flag(options, "multi_label", default=False):
        raise refuse("parameters.multi_label is true, but of a request's labels one is right")
    model, version, _ = http_call.find(message, core, VECTORS)
    inputs = message.get("inputs")
    if type(inputs) is list and all(type(text) is str for text in inputs):
        inputs = [[text] for text in inputs]
    texts, pairs, single = _read_inputs(inputs)
    if pairs is not None:
        raise refuse("inputs has pairs of texts; labels of a request are for single texts")
    words = [name.replace("_", " ") for name in given]
    _check_texts("parameters.labels", words)
    _check_texts("inputs", texts)
    names = [(template or "{}").replace("{}", name) for name in words]
    raw = _request(VECTORS, [*names, *texts], None, message)
    known = (*COMMON, "parameters", *LABELS, TEMPLATE, "multi_label")
    unknown = unknown_parameters(raw._replace(parameters={**message, **options}), known)

    def write(response: Response) -> Content:
        from fleetbert.tasks import vector_heads  # with tokenizers, which a start does not wait for
        from fleetbert.tasks.metrics import softmax

        vectors = http_call.array(response, VECTORS)
        of_names, of_texts = vectors[: len(names)], vectors[len(names) :]
        head = vector_heads.of_names(of_names, of_texts[:0])
        rows = [_sorted(given, row) for row in softmax(head.logits(of_texts))]
        return http_call.as_json(rows[0] if single else rows, unknown)

    return Asked(model, version, lambda: raw, write)


def read_similarity(message: http_json.Json, core: Core) -> Asked:
    """POST /similarity: the cosines of a text and others."""
    inputs, options = message.get("inputs"), http_call.read_options(message)
    if type(inputs) is not dict:
        raise refuse(
            f"inputs is {show(inputs)}; it has to be an object of source_sentence and sentences"
        )
    model, version, _ = http_call.find(message, core, VECTORS)
    source = inputs.get("source_sentence")
    if type(source) is not str:
        raise refuse(f"inputs.source_sentence is {show(source)}; it has to be a text")
    sentences = read_texts(inputs.get("sentences"), "inputs.sentences")
    _check_texts("inputs.sentences", sentences)
    raw = _request(VECTORS, [source, *sentences], None, options)
    unknown = unknown_parameters(raw._replace(parameters=options), COMMON)

    def write(response: Response) -> Content:
        vectors = http_call.array(response, VECTORS)
        return http_call.as_json((vectors[1:] @ vectors[0]).tolist(), unknown)

    return Asked(model, version, lambda: raw, write)


def read_plain(message: http_json.Json, core: Core) -> Asked:
    """POST /models/MODEL with {"text": ...}: an object for each text, for people to read."""
    model, version, target = http_call.find(message, core)
    usual = QUESTION if target.answers_questions else {}
    message = {usual.get(name, name): value for name, value in message.items()}
    texts = read_texts(message.get("text"), next(iter(usual), "text"))
    pairs = message.get("text_pair")
    pairs = None if pairs is None else read_texts(pairs, "text_pair")
    parameters = {name: message[name] for name in PARAMETERS if name in message}
    names = [tensor.name for tensor in target.outputs if tensor.name != LOGITS]
    raw = http_call.of_texts(names[0], texts, pairs)._replace(parameters=parameters, outputs=names)
    unknown = unknown_parameters(
        raw._replace(parameters=message), ("model", "text", "text_pair", *PARAMETERS)
    )

    def write(response: Response) -> Content:
        answers: list[dict[str, object]] = [{} for _ in texts]
        labels = {str(label): label for label in target.labels}
        for name in names:
            values = response.outputs[name]
            for answer, value in zip(answers, values):
                if name == SCORES:
                    value = dict(zip(labels, value))
                elif name == "label":
                    value = labels[value]
                elif name in ("labels", "spans", ANSWER):
                    value = orjson.loads(value)
                answer[name] = value
        body = {"model": response.model, "version": response.version, "answers": answers}
        return http_call.as_json(body, unknown)

    return Asked(model, version, lambda: raw, write)


def read_texts(given: object, name: str = "inputs") -> list[object]:
    """A text or a list of them, which are checked later."""
    texts = [given] if type(given) is str else given
    if type(texts) is not list or not texts:
        raise refuse(f"{name} has to be a text or a list of texts, at least one")
    if type(texts[0]) in (int, list):
        raise refuse(f"{name} holds token ids, of another model's tokenizer; send texts")
    return texts


def _read_inputs(given: object) -> tuple[list[object], list[object] | None, bool]:
    """Texts, second texts if there are, and whether it is one text or pair, of /predict."""
    if type(given) is str:
        return [given], None, True
    if type(given) is not list or not given:
        raise refuse(
            "inputs has to be a text, a pair of texts, or a list of [text] or [text, text]"
        )
    rows = given
    single = all(type(part) is str for part in given)
    if single:
        if len(given) != 2:
            raise refuse("inputs of texts is one pair; send several texts as [[text], [text]]")
        rows = [given]
    sizes = {len(row) if type(row) is list else 0 for row in rows}
    if sizes not in ({1}, {2}):
        raise refuse("inputs has to hold lists of one text each, or of two each")
    return [row[0] for row in rows], [row[1] for row in rows] if sizes == {2} else None, single


def _check_texts(name: str, texts: Sequence[object]) -> None:
    """Failure with the place in the field `name`, of texts that are sent on behind others."""
    for number, text in enumerate(texts):
        fault = fault_of(text) if type(text) is str else f"is {show(text)}; it has to be a text"
        if fault is not None:
            raise refuse(f"{name}[{number}] {fault}")


def _request(
    output: str, texts: list[object], pairs: list[object] | None, message: Mapping[str, Any]
) -> RawRequest:
    """For one output, with what `message` says of truncation."""
    _refuse_prompt(message)
    http_call.refuse_direction(message)
    parameters = {"truncate": http_call.read_flag(message, "truncate", default=True)}
    return http_call.of_texts(output, texts, pairs)._replace(parameters=parameters)


def _refuse_prompt(message: Mapping[str, Any]) -> None:
    prompt = message.get("prompt_name")
    if prompt is not None:
        raise refuse(
            f"prompt_name is {show(prompt)}, but models here have no prompts: put its words before "
            "each text"
        )


def _sorted(labels: Sequence[str | int], scores: np.ndarray) -> list[Prediction]:
    """The highest score first. Labels are strings, as this protocol has them."""
    rows = sorted(zip(scores, labels), key=lambda row: -row[0])
    return [{"label": str(label), "score": score} for score, label in rows]


def describe(version: Version, safety: Safety, batch_tokens: int) -> dict[str, object]:
    """GET /info"""
    kind: dict[str, object]
    if http_call.tells(version, VECTORS):
        kind = {"embedding": {"pooling": version.pooling}}
    else:
        ids = {str(name): id_ for id_, name in enumerate(version.labels or ("LABEL_0",))}
        names = {str(id_): name for name, id_ in ids.items()}
        ranks = version.pair and http_call.tells(version, http_rerank.VALUES)
        kind = {"reranker" if ranks else "classifier": {"id2label": names, "label2id": ids}}
    return {
        "model_id": version.model,
        "served_model_name": version.model,
        "model_sha": version.bundle or None,
        "model_dtype": version.variant,
        "model_type": kind,
        "max_input_length": version.max_length,
        "max_client_batch_size": safety.max_texts,
        "max_concurrent_requests": safety.max_connections,
        "max_batch_tokens": batch_tokens,
        "max_batch_requests": None,
        "auto_truncate": True,
        "tokenization_workers": 2,
        "version": fleetbert.__version__,
    }
