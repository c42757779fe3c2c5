"""What the server says of itself and its models, as both protocols say it.

https://github.com/kserve/open-inference-protocol (specification/protocol) and, for statistics and
the repository, the extensions of Triton's docs/protocol.
"""

from __future__ import annotations

import re
from typing import TypedDict

import fleetbert
from fleetbert.deploy.inference.messages import Core, Failure, Reason, State, Statistics, show

SERVER = "fleetbert"
PLATFORM = "paddle_inference"
TYPES = {"BYTES": "TYPE_STRING", "INT64": "TYPE_INT64", "INT32": "TYPE_INT32", "FP32": "TYPE_FP32"}
# In Triton's words, and for both protocols.
EXTENSIONS = (
    "binary_tensor_data",
    "parameters",
    "model_repository",
    "model_configuration",
    "statistics",
)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}\Z")


class Duration(TypedDict):
    count: int
    ns: int


class ServerMetadata(TypedDict):
    name: str
    version: str
    extensions: list[str]


class TensorMetadata(TypedDict):
    name: str
    datatype: str
    shape: list[int]


class ModelParameters(TypedDict):
    task: str
    labels: list[str]
    max_length: int
    variant: str
    bundle: str


class ModelMetadata(TypedDict):
    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    parameters: ModelParameters


class BatchStatistics(TypedDict):
    batch_size: int
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


class VersionStatistics(TypedDict):
    name: str
    version: str
    last_inference: int
    inference_count: int
    execution_count: int
    inference_stats: dict[str, Duration]
    batch_stats: list[BatchStatistics]


class ModelStatistics(TypedDict):
    model_stats: list[VersionStatistics]


def server_metadata() -> ServerMetadata:
    """Name, version and extensions."""
    return {"name": SERVER, "version": fleetbert.__version__, "extensions": list(EXTENSIONS)}


def model_metadata(core: Core, model: str, version: str | None = None) -> ModelMetadata:
    """Of the version that a request with these words would go to; Failure as in `Core.find`."""
    found = core.find(model, version)
    texts = ("text", "text_pair") if found.pair else ("text",)
    tensors = [(name, "BYTES", [-1]) for name in texts]
    tensors += [(name, "INT64", [-1, -1]) for name in ("input_ids", "token_type_ids")]
    ready = (other for other in core.versions(model) if other.state is State.READY)
    return {
        "name": found.model,
        "versions": [other.version for other in ready],
        "platform": PLATFORM,
        "inputs": [_tensor_metadata(*tensor) for tensor in tensors],
        "outputs": [_tensor_metadata(t.name, t.datatype, list(t.shape)) for t in found.outputs],
        "parameters": {
            "task": found.task,
            "labels": list(found.labels),
            "max_length": found.max_length,
            "variant": found.variant,
            "bundle": found.bundle,
        },
    }


def model_config(core: Core, model: str, version: str | None = None) -> dict[str, object]:
    """The same as Triton's ModelConfig, for its clients; a batch is the first dimension."""
    found = model_metadata(core, model, version)

    def describe(tensors: list[TensorMetadata]) -> list[dict[str, object]]:
        return [
            {"name": t["name"], "data_type": TYPES[t["datatype"]], "dims": t["shape"]}
            for t in tensors
        ]

    inputs = describe(found["inputs"])
    for tensor in inputs:
        if tensor["name"] not in ("text", "text_pair"):
            tensor["optional"] = True
    return {
        "name": found["name"],
        "platform": PLATFORM,
        "max_batch_size": 0,
        "input": inputs,
        "output": describe(found["outputs"]),
    }


def is_ready(core: Core, model: str, version: str | None = None) -> bool:
    """Whether a request with these words would be answered; Failure NOT_FOUND if unknown."""
    try:
        core.find(model, version)
    except Failure as failure:
        if failure.reason is Reason.UNAVAILABLE:
            return False
        raise
    return True


def index(core: Core, ready: bool = False) -> list[dict[str, str]]:
    """All versions of all models, or those that are ready."""
    return [
        {
            "name": version.model,
            "version": version.version,
            "state": version.state.value,
            "reason": version.reason,
        }
        for version in core.versions()
        if not ready or version.state is State.READY
    ]


def statistics(core: Core, model: str | None = None, version: str | None = None) -> ModelStatistics:
    """`model_stats` of Triton's statistics extension. Failure NOT_FOUND if unknown."""
    return {"model_stats": [_version_statistics(s) for s in core.statistics(model, version)]}


def check_name(model: str) -> str:
    """A model's name that may be looked for on disk: no path. Failure NOT_FOUND otherwise."""
    if not NAME.match(model):
        raise Failure(Reason.NOT_FOUND, f"there is no model {show(model)}")
    return model


def _tensor_metadata(name: str, datatype: str, shape: list[int]) -> TensorMetadata:
    return {"name": name, "datatype": datatype, "shape": shape}


def _version_statistics(found: Statistics) -> VersionStatistics:
    # Tokenizing and answering are not told apart from computing. Triton's perf_analyzer ends unless
    # the three have the same count.
    nothing = _duration((found.compute[0], 0))
    return {
        "name": found.model,
        "version": found.version,
        "last_inference": found.last_inference,
        "inference_count": found.inference_count,
        "execution_count": found.execution_count,
        "inference_stats": {
            "success": _duration(found.success),
            "fail": _duration(found.fail),
            "queue": _duration(found.queue),
            "compute_input": nothing,
            "compute_infer": _duration(found.compute),
            "compute_output": nothing,
        },
        "batch_stats": [
            {
                "batch_size": texts,
                "compute_input": _duration((count, 0)),
                "compute_infer": _duration((count, nanoseconds)),
                "compute_output": _duration((count, 0)),
            }
            for texts, count, nanoseconds in found.batches
        ],
    }


def _duration(value: tuple[int, int]) -> Duration:
    return {"count": value[0], "ns": value[1]}
