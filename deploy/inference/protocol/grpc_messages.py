"""Requests and answers of the protocol as messages of gRPC, and what each call tells of a core."""

from __future__ import annotations

from typing import Any, Callable, Mapping

from fleetbert.deploy.inference.messages import Core, Response, show
from fleetbert.deploy.inference.protocol import inference_pb2 as pb
from fleetbert.deploy.inference.protocol import metadata
from fleetbert.deploy.inference.protocol.tensors import Tensor, outputs, refuse, to_raw
from fleetbert.deploy.inference.protocol.validation import RawRequest, check_tensor_parameters

# Where the elements of a datatype are, in requests that are not raw.
CONTENTS = {
    "BYTES": "bytes_contents",
    "INT64": "int64_contents",
    "INT32": "int_contents",
    "FP32": "fp32_contents",
}

Message = Any  # grpc has no types; one of `pb`, by the method


def _version(request: Message) -> tuple[str, str | None]:
    return request.name, request.version or None


def _metadata(core: Core, request: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
    about = metadata.model_metadata(core, *_version(request))
    return pb.ModelMetadataResponse(  # it has no place for parameters
        name=about["name"],
        versions=about["versions"],
        platform=about["platform"],
        inputs=about["inputs"],
        outputs=about["outputs"],
    )


# What each call tells of a core; what it does stands in inference.proto.
DESCRIPTIONS: Mapping[str, Callable[[Core, Message], Message]] = {
    "ServerLive": lambda core, _: pb.ServerLiveResponse(live=core.live()),
    "ServerReady": lambda core, _: pb.ServerReadyResponse(ready=core.ready()),
    "ServerMetadata": lambda *_: pb.ServerMetadataResponse(**metadata.server_metadata()),
    "ModelReady": lambda core, request: pb.ModelReadyResponse(
        ready=metadata.is_ready(core, *_version(request))
    ),
    "ModelMetadata": _metadata,
    "ModelConfig": lambda core, request: pb.ModelConfigResponse(
        config=metadata.model_config(core, *_version(request))
    ),
    "ModelStatistics": lambda core, request: pb.ModelStatisticsResponse(
        **metadata.statistics(core, request.name or None, request.version or None)
    ),
    "RepositoryIndex": lambda core, request: pb.RepositoryIndexResponse(
        models=metadata.index(core, request.ready)
    ),
}


def read_parameters(parameters: Mapping[str, Any]) -> dict[str, object]:
    """Python's values of a map of parameters, without those that hold nothing."""
    if not parameters:
        return {}
    kinds = (
        (key, value, value.WhichOneof("parameter_choice")) for key, value in parameters.items()
    )
    return {key: getattr(value, kind) for key, value, kind in kinds if kind is not None}


def read_request(request: pb.ModelInferRequest, seconds_left: float | None) -> RawRequest:
    """seconds_left: until the client's deadline, if it has one."""
    parameters = read_parameters(request.parameters)
    if seconds_left is not None:
        microseconds = max(1, int(seconds_left * 1e6))
        timeout = parameters.setdefault("timeout", microseconds)
        if type(timeout) is int and (timeout == 0 or timeout > microseconds):
            parameters["timeout"] = microseconds
    tensors = read_inputs(request)
    unknown: list[str] = []
    for where, entries in (("inputs", request.inputs), ("outputs", request.outputs)):
        for number, entry in enumerate(entries):
            if entry.parameters:
                unknown.extend(check_tensor_parameters(entry.parameters, f"{where}[{number}]"))
    names = [output.name for output in request.outputs]
    return RawRequest(request.id, parameters, tensors, names, unknown)


def read_inputs(request: pb.ModelInferRequest) -> list[Tensor]:
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise refuse(
            f"raw_input_contents has {len(raw)} tensors, but there are {len(request.inputs)} inputs"
        )
    tensors = []
    for number, entry in enumerate(request.inputs):
        name, datatype, shape = entry.name, entry.datatype, list(entry.shape)
        if raw:
            if entry.HasField("contents"):
                raise refuse(
                    f"input {show(name)} has contents beside raw_input_contents; "
                    "send one or the other"
                )
            tensors.append(Tensor(name, datatype, shape, raw[number], raw=True))
            continue
        wanted = CONTENTS.get(datatype)
        for field, _ in entry.contents.ListFields():
            if wanted is not None and field.name != wanted:
                raise refuse(
                    f"input {show(name)} has {field.name}; datatype {datatype} needs {wanted}"
                )
        values = list(getattr(entry.contents, wanted)) if wanted else []
        tensors.append(Tensor(name, datatype, shape, values))
    return tensors


def to_message(response: Response, raw: RawRequest) -> pb.ModelInferResponse:
    chosen = outputs(response, raw.outputs)
    message = pb.ModelInferResponse(
        model_name=response.model,
        model_version=response.version,
        id=raw.id,
        raw_output_contents=map(to_raw, chosen),
    )
    for name in ("truncated", "cut"):  # `cut`: its former name, for one more release
        message.parameters[name].int64_param = response.truncated
    if response.bundle:
        message.parameters["bundle"].string_param = response.bundle
    for output in chosen:
        message.outputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
    return message
