"""The schemas of the OpenAPI document: what goes in and out of the calls, as dicts."""

from __future__ import annotations

from typing import Any, Dict

from fleetbert.deploy.inference.protocol.tensors import OUTPUTS

Json = Dict[str, Any]


def ref(schema: str) -> Json:
    """A reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{schema}"}


def schemas() -> Json:
    """All of them by name."""
    text, count, flag = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
    size = {"type": "integer", "minimum": 1}
    kinds = [{"type": name} for name in ("string", "number", "boolean")]
    scalar = {"anyOf": kinds, "nullable": True}
    parameters = {"type": "object", "additionalProperties": scalar}
    tensor = {"name": text, "datatype": text, "shape": _list({"type": "integer"})}
    duration = _object({"count": count, "ns": count})
    computing = ("compute_input", "compute_infer", "compute_output")
    times = dict.fromkeys(("success", "fail", "queue", *computing), duration)
    batch = {"batch_size": count, **dict.fromkeys(computing, duration)}
    version = {
        "name": text,
        "version": text,
        "last_inference": count,
        "inference_count": count,
        "execution_count": count,
        "inference_stats": _object(times),
        "batch_stats": _list(_object(batch)),
    }
    states = {"enum": ["LOADING", "READY", "DRAINING", "UNAVAILABLE"]}
    request_parameters = {
        "type": "object",
        "properties": {
            "timeout": {**count, "description": "Microseconds; 0: the server's default"},
            "speed": {"type": "number", "minimum": 0, "maximum": 1},
            "binary_data_output": flag,
        },
        "additionalProperties": scalar,
    }
    repository_parameters = {
        "type": "object",
        "properties": {"unload_dependents": {}},
        "additionalProperties": False,
    }
    inputs = [ref("Texts"), ref("TokenIds")]
    return {
        "Error": _object({"error": text}),
        "Live": _object({"live": flag}),
        "NotLive": _object({"live": flag, "error": text}),
        "Ready": _object({"live": flag, "ready": flag}),
        "NotReady": _object({"live": flag, "ready": flag, "error": text}),
        "Server": _object({"name": text, "version": text, "extensions": _list(text)}),
        "ModelReady": _object({"name": text, "ready": flag}),
        "ModelNotReady": _object({"name": text, "error": text}, ready=flag),
        "Model": _object(
            {
                "name": text,
                "versions": _list(text),
                "platform": text,
                "inputs": _list(_object(tensor)),
                "outputs": _list(_object(tensor)),
            },
            parameters=_object(
                {"labels": _list(text), "max_length": count, "variant": text, "bundle": text}
            ),
        ),
        "InferenceRequest": _object(
            {"inputs": {**_list({"oneOf": inputs}), "minItems": 1}},
            id=_or_null(text),
            parameters=_or_null(request_parameters),
            outputs=_or_null(_list(ref("RequestOutput"))),
        ),
        "Texts": _object(
            {
                "name": {"enum": ["text", "text_pair"]},
                "shape": {**_list(size), "minItems": 1, "maxItems": 1},
                "datatype": {"enum": ["BYTES"]},
            },
            parameters=_or_null(parameters),
            data=_list(text),
        ),
        "TokenIds": _object(
            {
                "name": {"enum": ["input_ids", "token_type_ids"]},
                "shape": {**_list(size), "minItems": 2, "maxItems": 2},
                "datatype": {"enum": ["INT64", "INT32"]},
            },
            parameters=_or_null(parameters),
            data={"anyOf": [_list(count), _list(_list(count))]},
        ),
        "RequestOutput": _object(
            {"name": {"enum": list(OUTPUTS)}}, parameters=_or_null(parameters)
        ),
        "InferenceResponse": _object(
            {
                "model_name": text,
                "model_version": text,
                "parameters": _object({"cut": count}, bundle=text),
                "outputs": _list(_object(tensor, parameters=parameters, data={"type": "array"})),
            },
            id=text,
        ),
        "Statistics": _object({"model_stats": _list(_object(version))}),
        "IndexRequest": _object({}, ready=flag),
        "Index": _list(_object({"name": text, "version": text, "state": states, "reason": text})),
        "RepositoryRequest": _object({}, parameters=_or_null(repository_parameters)),
    }


def _object(required: Json, **optional: Json) -> Json:
    found: Json = {"type": "object", "properties": {**required, **optional}}
    if required:
        found["required"] = list(required)
    return found


def _or_null(schema: Json) -> Json:
    return {**schema, "nullable": True}


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}
