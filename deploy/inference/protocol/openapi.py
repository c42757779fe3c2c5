"""The OpenAPI 3.0 document of the calls in `http`, made of openapi.yaml."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, Dict, Sequence

import yaml

import fleetbert
from fleetbert.deploy.inference.protocol.metadata import NAME

Json = Dict[str, Any]

MODEL = "/v2/models/{model}"
ERRORS = {  # by a part of the path; the first that fits
    "/question-answering": "Error",
    "/v2/models": "Error",
    "/v2/repository": "Error",
    "/rerank": "RerankError",
    "/v1/": "OpenaiError",
    "/models/": "RerankError",
}
ADMIN = "/v2/repository/models/"
VERSION = "A version's number, or a label such as stable"


def document(*, admin: bool = True, api_key: bool = False, models: Sequence[str] = ()) -> Json:
    """Of the calls that `http.app` offers with the same words; `models` are examples of names."""
    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    source: Json = json.loads(json.dumps(yaml.safe_load(text)))  # nothing stands twice in it
    model = _in_path("model", "A model's name", pattern=NAME.pattern.replace(r"\Z", "$"))
    if models:
        model["examples"] = {name: {"value": name} for name in models}
    paths: Json = {}
    for path, calls in source["paths"].items():
        if path.startswith(ADMIN) and not admin:
            continue
        for call in calls.values():
            error = next((name for end, name in ERRORS.items() if end in path), "Error")
            replies = call["responses"].items()
            codes = {code: error if name == "Error" else name for code, name in replies}
            codes["500"] = error
            if api_key and "security" not in call:
                codes["401"] = error
            elif not api_key:
                call.pop("security", None)
            call["responses"] = {code: _response(source, code, codes[code]) for code in codes}
            if "{model}" in path:
                call["parameters"] = [model, *call.get("parameters", ())]
        paths[path] = calls
        if path.startswith(MODEL):
            paths[path.replace(MODEL, MODEL + "/versions/{version}")] = _of_version(calls)
    _require_properties(source)
    document: Json = {
        "openapi": "3.0.3",
        "info": {
            "title": "fleetbert",
            "version": fleetbert.__version__,
            "description": "The Open Inference Protocol v2: texts, or token ids, to answers.",
            "license": {"name": "Apache-2.0"},
        },
        "servers": [{"url": "."}],  # beside this document, behind a proxy's prefix too
        "paths": paths,
        "components": {"schemas": source["schemas"]},
    }
    if api_key:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _response(source: Json, code: str, schema: str | None) -> Json:
    response: Json = {"description": source["meanings"][code]}
    headers = source["headers"].get(code) or source["headers"].get(str(schema))
    if headers:
        response["headers"] = headers
    if schema is not None:
        content = {"schema": {"$ref": f"#/components/schemas/{schema}"}}
        response["content"] = {"application/json": content}
    if schema == "InferenceResponse":
        response["content"]["application/octet-stream"] = {"schema": {}}
    return response


def _of_version(calls: Json) -> Json:
    """The same calls with a version in their path."""
    calls = copy.deepcopy(calls)
    for call in calls.values():
        call["operationId"] += "Version"
        call["parameters"].insert(1, _in_path("version", VERSION))
    return calls


def _in_path(name: str, description: str, **schema: str) -> Json:
    parameter: Json = {"name": name, "in": "path", "required": True, "description": description}
    return {**parameter, "schema": {"type": "string", "minLength": 1, **schema}}


def _require_properties(part: Any) -> None:
    """Of each object that does not say which of its properties are required; none is no list."""
    if isinstance(part, dict):
        if part.get("type") == "object" and "properties" in part:
            part.setdefault("required", list(part["properties"]))
            if not part["required"]:
                del part["required"]
        for child in part.values():
            _require_properties(child)
    elif isinstance(part, list):
        for child in part:
            _require_properties(child)
