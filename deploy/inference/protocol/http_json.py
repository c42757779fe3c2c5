"""The Open Inference Protocol's bodies over HTTP: JSON, with tensors as raw bytes after it or not.

Binary tensors are Triton's extension `binary_tensor_data`: the header
`Inference-Header-Content-Length` says how long the JSON is, raw tensors follow in its order.
"""

from __future__ import annotations

from typing import Any, Container, Dict, Mapping, NamedTuple

import numpy as np
import orjson

from fleetbert.deploy.inference.messages import Response, show
from fleetbert.deploy.inference.protocol.tensors import Tensor, outputs, refuse, to_raw
from fleetbert.deploy.inference.protocol.validation import RawRequest, check_tensor_parameters

Json = Dict[str, Any]  # an object

MAX_DEPTH = 100
SCALARS = (str, int, float, bool)
OF_INPUT, OF_OUTPUT = ("binary_data_size",), ("binary_data",)  # the parameters that are read


class Body(NamedTuple):
    """A parsed request, and how its answer is to be written."""

    request: RawRequest
    binary: Mapping[str, bool]  # by output; those that are not in it as `all_binary` says
    all_binary: bool


def parse(body: bytes, header_length: str | None = None) -> Body:
    """An inference request; `header_length` is the value of Inference-Header-Content-Length.

    Failure BAD_REQUEST with the field that is wrong.
    """
    head, rest = _split(body, header_length)
    message = read_object(head)
    request_id = message.get("id")
    if request_id is None:
        request_id = ""
    elif type(request_id) is not str:
        raise refuse(f"id is {show(request_id)}; it has to be a string")
    parameters = _read_parameters(message, "the request")
    inputs, position = [], 0
    unknown: list[str] = []
    for number, entry in enumerate(_read_list(message, "inputs")):
        tensor, position = _read_input(number, entry, rest, position, unknown)
        inputs.append(tensor)
    if not inputs:
        raise refuse("inputs is empty or missing; it has to be a list of tensors")
    if rest is not None and position != len(rest):
        raise refuse(f"the body has {len(rest) - position} bytes after the last binary tensor")
    names, binary = [], {}
    for number, entry in enumerate(_read_list(message, "outputs")):
        name, parameters_of = _read_entry(f"outputs[{number}]", entry, OF_OUTPUT, unknown)
        names.append(name)
        if "binary_data" in parameters_of:
            binary[name] = _read_flag(parameters_of, "binary_data", f"output {show(name)}")
    all_binary = "binary_data_output" in parameters and _read_flag(
        parameters, "binary_data_output", "the request"
    )
    return Body(RawRequest(request_id, parameters, inputs, names, unknown), binary, all_binary)


def render(response: Response, body: Body) -> tuple[bytes, int | None]:
    """The answer's body, and how long the JSON in it is where binary tensors follow."""
    described: list[Json] = []
    raw = []
    for output in outputs(response, body.request.outputs):
        entry: Json = {
            "name": output.name,
            "datatype": output.datatype,
            "shape": output.shape,
        }
        if body.binary.get(output.name, body.all_binary):
            raw.append(to_raw(output))
            entry["parameters"] = {"binary_data_size": len(raw[-1])}
        else:
            flat = isinstance(output.values, np.ndarray)
            entry["data"] = output.values.ravel() if flat else output.values  # type: ignore[union-attr]
        described.append(entry)
    # `cut`: its former name, for one more release
    parameters: Json = {"truncated": response.truncated, "cut": response.truncated}
    if response.bundle:
        parameters["bundle"] = response.bundle
    message = {
        "model_name": response.model,
        "model_version": response.version,
        "id": body.request.id,
        "parameters": parameters,
        "outputs": described,
    }
    if not body.request.id:
        del message["id"]
    head = orjson.dumps(message, option=orjson.OPT_SERIALIZE_NUMPY)
    return (b"".join((head, *raw)), len(head)) if raw else (head, None)


def read_object(text: bytes) -> Json:
    """A JSON object nested at most MAX_DEPTH deep (tensors' data apart); Failure BAD_REQUEST."""
    try:
        message = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if "limit" in error.msg:  # of nesting; the words depend on orjson's version
            raise _too_deep() from None
        if b"\0" in text[:4] or not _is_utf8(text):  # UTF-16; Latin-1
            raise refuse("the body is not JSON in UTF-8; send UTF-8") from None
        near = f", near {show(error.doc[max(0, error.pos - 40) : error.pos + 8])}"
        raise refuse(
            f"the body is not JSON: {error.msg} at character {error.pos}{near if error.doc else ''}"
        ) from None
    if type(message) is not dict:
        raise refuse(f"the body is {show(message)}; it has to be a JSON object")
    if text.count(b"[") + text.count(b"{") > MAX_DEPTH:
        _check_depth(message)
    return message


def _split(body: bytes, header_length: str | None) -> tuple[bytes, memoryview | None]:
    if header_length is None:
        return body, None
    name = "Inference-Header-Content-Length"
    if not (header_length.isascii() and header_length.isdigit() and len(header_length) < 20):
        raise refuse(f"{name} is {show(header_length)}; it has to be a number of bytes")
    length = int(header_length)
    if length > len(body):
        raise refuse(f"{name} is {length}, but the body has {len(body)} bytes")
    return body[:length], memoryview(body)[length:]


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _too_deep() -> Exception:
    return refuse(f"the body is nested more than {MAX_DEPTH} levels deep")


def _check_depth(message: Json) -> None:
    """Level by level, without tensors' data: they are long, and their nesting is checked later."""
    level: list[Any] = [{key: value for key, value in message.items() if key != "inputs"}]
    inputs = message.get("inputs")
    for entry in inputs if type(inputs) is list else [inputs]:
        shallow = entry
        if type(entry) is dict:
            shallow = {key: value for key, value in entry.items() if key != "data"}
        level.append([shallow])
    for _ in range(MAX_DEPTH):
        level = [
            child
            for parent in level
            for child in (parent.values() if type(parent) is dict else parent)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return
    raise _too_deep()


def _read_list(message: Json, key: str) -> list[Any]:
    entries = message.get(key)
    if entries is None:
        return []
    if type(entries) is not list:
        raise refuse(f"{key} is {show(entries)}; it has to be a list")
    return entries


def _read_entry(
    where: str, entry: Any, known: Container[str], unknown: list[str]
) -> tuple[str, Json]:
    """Name and parameters of an input or output; those that are not `known` are added to
    `unknown`."""
    if type(entry) is not dict:
        raise refuse(f"{where} is {show(entry)}; it has to be an object")
    name = entry.get("name")
    if type(name) is not str:
        raise refuse(f"{where}.name is {show(name)}; it has to be a string")
    parameters = _read_parameters(entry, where)
    unknown.extend(check_tensor_parameters(parameters, where, known))
    return name, parameters


def _read_input(
    number: int, entry: Any, rest: memoryview | None, position: int, unknown: list[str]
) -> tuple[Tensor, int]:
    """A tensor, and where in `rest` the next one begins."""
    where = f"inputs[{number}]"
    name, parameters = _read_entry(where, entry, OF_INPUT, unknown)
    datatype, shape, values = entry.get("datatype"), entry.get("shape"), entry.get("data")
    if "binary_data_size" not in parameters:
        if values is None:
            raise refuse(f"data of input {show(name)} is missing")
        return Tensor(name, datatype, shape, values), position
    if values is not None:
        raise refuse(f"input {show(name)} has data and binary_data_size; send one or the other")
    size = parameters["binary_data_size"]
    if type(size) is not int or size < 0:
        raise refuse(
            f"binary_data_size of input {show(name)} is {show(size)}; "
            "it has to be a number of bytes"
        )
    if rest is None:
        raise refuse(
            f"input {show(name)} has binary_data_size, which needs the header "
            "Inference-Header-Content-Length"
        )
    if size > len(rest) - position:
        raise refuse(
            f"binary_data_size of input {show(name)} is {size}, but the body has "
            f"{len(rest) - position} bytes left"
        )
    end = position + size
    return Tensor(name, datatype, shape, rest[position:end], raw=True), end


def _read_parameters(message: Json, where: str) -> Json:
    parameters = message.get("parameters")
    if parameters is None:
        return {}
    if type(parameters) is not dict:
        raise refuse(f"parameters of {where} are {show(parameters)}; they have to be an object")
    for key, value in parameters.items():
        if type(value) not in SCALARS and value is not None:
            raise refuse(
                f"parameter {show(key)} of {where} is {show(value)}; it has to be a string, a "
                "number, true or false"
            )
    return parameters


def _read_flag(parameters: Json, key: str, where: str) -> bool:
    value = parameters[key]
    if type(value) is not bool:
        raise refuse(f"parameter '{key}' of {where} is {show(value)}; it has to be true or false")
    return value
