"""The OpenAPI 3.0 document of the calls in `http`, as a dict."""

from __future__ import annotations

from typing import Sequence

import fleetbert
from fleetbert.deploy.inference.protocol.metadata import NAME
from fleetbert.deploy.inference.protocol.openapi_schemas import Json, ref, schemas

JSON = "application/json"
BINARY = "application/octet-stream"
TEXT_EXAMPLE = {
    "inputs": [{"name": "text", "shape": [2], "datatype": "BYTES", "data": ["good", "bad"]}]
}
IDS_EXAMPLE = {
    "id": "42",
    "parameters": {"timeout": 500000},
    "inputs": [{"name": "input_ids", "shape": [1, 3], "datatype": "INT64", "data": [[1, 2, 3]]}],
    "outputs": [{"name": "label"}, {"name": "scores"}],
}


def document(*, admin: bool = True, api_key: bool = False, models: Sequence[str] = ()) -> Json:
    """Of the calls that `http.app` offers with the same words; `models` are examples of names."""
    paths = {
        "/v2/health/live": {
            "get": _call(
                "live",
                "Whether the server answers, and can heal what does not",
                {"200": _json("Live"), "503": _json("NotLive", "It has to be started anew")},
            )
        },
        "/v2/health/ready": {
            "get": _call(
                "ready",
                "Whether every model that is to be served is ready",
                {"200": _json("Ready"), "503": _json("NotReady", "Not yet")},
            )
        },
    }
    paths.update(_inference_paths(models))
    if admin:
        paths.update(_admin_paths(models))
    found: Json = {
        "openapi": "3.0.3",
        "info": {
            "title": "fleetbert",
            "version": fleetbert.__version__,
            "description": "The Open Inference Protocol v2: texts, or token ids, to labels.",
            "license": {"name": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": schemas(), "headers": _response_headers()},
    }
    if api_key:
        found["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"key": []}]
        for path, calls in paths.items():
            for call in calls.values():
                if path.startswith("/v2/health/"):
                    call["security"] = []
                else:
                    call["responses"]["401"] = _error("No key, or a wrong one")
    return found


def _inference_paths(models: Sequence[str]) -> Json:
    paths: Json = {
        "/v2": {
            "get": _call("server", "The server's name and extensions", {"200": _json("Server")})
        },
        "/v2/models/stats": {
            "get": _call("stats", "Counts and times of all versions", {"200": _json("Statistics")})
        },
        "/v2/repository/index": {
            "post": _call(
                "index",
                "All versions of all models and their state",
                {"200": _json("Index"), **_refusals(400, 413)},
                body=_body("IndexRequest", {}),
            )
        },
    }
    for end, operation, summary, answers in (
        (
            "",
            "model",
            "A model's inputs and outputs",
            {"200": _json("Model"), **_refusals(404, 503)},
        ),
        (
            "/ready",
            "modelReady",
            "Whether a model is ready",
            {
                "200": _json("ModelReady"),
                "503": _json("ModelNotReady", "Not yet"),
                **_refusals(404),
            },
        ),
        (
            "/stats",
            "modelStats",
            "Counts and times of a model",
            {"200": _json("Statistics"), **_refusals(404)},
        ),
    ):
        for path, name, parameters in _both(end, operation, models):
            paths[path] = {"get": _call(name, summary, answers, parameters)}
    for path, name, parameters in _both("/infer", "infer", models):
        parameters = [*parameters, _header_length("The JSON's length, where raw tensors follow")]
        paths[path] = {
            "post": _call(
                name,
                "The labels of texts or pairs of texts",
                {"200": _inference_answer(), **_refusals(400, 404, 413, 503, 504)},
                parameters,
                _inference_body(),
            )
        }
    return paths


def _admin_paths(models: Sequence[str]) -> Json:
    model = [_model_parameter(models)]
    answers = {"200": {"description": "Done"}, **_refusals(400, 404, 413, 503)}
    return {
        f"/v2/repository/models/{{model}}/{operation}": {
            "post": _call(operation, summary, answers, model, _body("RepositoryRequest", {}))
        }
        for operation, summary in (
            ("load", "Look at the model's folder and serve what its policy says"),
            ("unload", "Stop serving a model until it is loaded"),
        )
    }


def _call(
    operation: str,
    summary: str,
    responses: Json,
    parameters: list[Json] | None = None,
    body: Json | None = None,
) -> Json:
    found: Json = {
        "operationId": operation,
        "summary": summary,
        "responses": {**responses, "500": _error("The server's fault")},
    }
    if parameters:
        found["parameters"] = parameters
    if body:
        found["requestBody"] = body
    return found


def _both(end: str, operation: str, models: Sequence[str]) -> list[tuple[str, str, list[Json]]]:
    """Path, operation and path parameters of a model's call, without a version and with one."""
    model = _model_parameter(models)
    version = _path_parameter("version", "A version's number, or a label such as stable")
    return [
        (f"/v2/models/{{model}}{end}", operation, [model]),
        (
            f"/v2/models/{{model}}/versions/{{version}}{end}",
            f"{operation}Version",
            [model, version],
        ),
    ]


def _model_parameter(models: Sequence[str]) -> Json:
    found = _path_parameter("model", "A model's name")
    found["schema"]["pattern"] = NAME.pattern.replace(r"\Z", "$")
    if models:
        found["examples"] = {name: {"value": name} for name in models}
    return found


def _path_parameter(name: str, description: str) -> Json:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": {"type": "string", "minLength": 1},
    }


def _header_length(description: str) -> Json:
    return {
        "name": "Inference-Header-Content-Length",
        "in": "header",
        "required": False,
        "description": description,
        "schema": {"type": "integer", "minimum": 0},
    }


def _body(schema: str, example: Json) -> Json:
    return {"required": False, "content": {JSON: {"schema": ref(schema), "example": example}}}


def _inference_body() -> Json:
    examples = {"texts": {"value": TEXT_EXAMPLE}, "token ids": {"value": IDS_EXAMPLE}}
    return {
        "required": True,
        "content": {
            JSON: {"schema": ref("InferenceRequest"), "examples": examples},
            BINARY: {"schema": {}},
        },
    }


def _inference_answer() -> Json:
    names = ("X-Queue-Time", "X-Inference-Time", "Inference-Header-Content-Length")
    return {
        "description": "The outputs in the order of the texts",
        "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in names},
        "content": {JSON: {"schema": ref("InferenceResponse")}, BINARY: {"schema": {}}},
    }


def _response_headers() -> Json:
    milliseconds = {"type": "number", "minimum": 0}
    length = {"type": "integer", "minimum": 0}
    return {
        "X-Queue-Time": {"description": "Milliseconds in the queue", "schema": milliseconds},
        "X-Inference-Time": {"description": "Milliseconds in the engine", "schema": milliseconds},
        "Inference-Header-Content-Length": {"description": "The JSON's length", "schema": length},
    }


def _refusals(*codes: int) -> Json:
    meanings = {
        400: "Something in the request is wrong; the sentence names it",
        404: "No such model or version",
        413: "More than this server takes in a request",
        503: "The queue is full, or the model is not ready",
        504: "The request's own time limit has passed",
    }
    refusals: Json = {str(code): _error(meanings[code]) for code in codes}
    if 503 in codes:
        seconds = {"description": "Seconds", "schema": {"type": "integer", "minimum": 1}}
        refusals["503"]["headers"] = {"Retry-After": seconds}
    return refusals


def _error(description: str) -> Json:
    return _json("Error", description)


def _json(schema: str, description: str = "The answer") -> Json:
    return {"description": description, "content": {JSON: {"schema": ref(schema)}}}
