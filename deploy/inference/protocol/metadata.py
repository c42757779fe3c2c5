"""What the server says of itself and its models, as both protocols say it.

https://github.com/kserve/open-inference-protocol (specification/protocol) and, for statistics and
the repository, the extensions of Triton's docs/protocol.
"""

from __future__ import annotations

import re
from typing import TypedDict

import fleetbert
from fleetbert.data import fields
from fleetbert.deploy.inference.messages import (
    Core,
    Failure,
    Reason,
    State,
    Statistics,
    Version,
    show,
)
from fleetbert.deploy.inference.protocol.validation import QUESTION

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
# In the words of the protocol; `reason` tells the rest.
STATES = {
    State.QUEUED: State.LOADING,
    State.REPLACED: State.UNAVAILABLE,
    State.UNLOADED: State.UNAVAILABLE,
}
TENSOR = ("name", "datatype", "shape")
IDS = ("input_ids", "token_type_ids")  # in place of texts
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}\Z")


class ServerMetadata(TypedDict):
    name: str
    version: str
    extensions: list[str]


class ModelParameters(TypedDict):
    task: str
    labels: list[str | int]
    max_length: int
    variant: str
    bundle: str


class ModelMetadata(TypedDict):
    name: str
    versions: list[str]
    platform: str
    inputs: list[dict[str, object]]  # name, datatype, shape
    outputs: list[dict[str, object]]
    parameters: ModelParameters


def server_metadata() -> ServerMetadata:
    return {"name": SERVER, "version": fleetbert.__version__, "extensions": list(EXTENSIONS)}


def model_metadata(core: Core, model: str, version: str | None = None) -> ModelMetadata:
    """Of the version that a request with these words would go to; Failure as in `Core.find`."""
    target = core.find(model, version)
    ready = (other for other in core.versions(model) if other.state is State.READY)
    return {
        "name": target.model,
        "versions": [other.version for other in ready],
        "platform": PLATFORM,
        "inputs": [dict(zip(TENSOR, tensor)) for tensor in _inputs(target)],
        "outputs": [dict(zip(TENSOR, tensor)) for tensor in target.outputs],
        "parameters": {
            "task": target.task,
            "labels": list(target.labels),
            "max_length": target.max_length,
            "variant": target.variant,
            "bundle": target.bundle,
        },
    }


def model_config(core: Core, model: str, version: str | None = None) -> dict[str, object]:
    """The same as Triton's ModelConfig, for its clients; a batch is the first dimension."""
    target = core.find(model, version)

    def describe(name: str, datatype: str, shape: tuple[int, ...]) -> dict[str, object]:
        instead = ("text",) if target.fields else IDS
        optional: dict[str, object] = {"optional": True} if name in instead else {}
        return {"name": name, "data_type": TYPES[datatype], "dims": shape, **optional}

    return {
        "name": target.model,
        "platform": PLATFORM,
        "max_batch_size": 0,
        "input": [describe(*tensor) for tensor in _inputs(target)],
        "output": [describe(*tensor) for tensor in target.outputs],
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
            "state": STATES.get(version.state, version.state).value,
            "reason": version.reason,
        }
        for version in core.versions()
        if not ready or version.state is State.READY
    ]


def statistics(
    core: Core, model: str | None = None, version: str | None = None
) -> dict[str, list[Statistics]]:
    """`model_stats` of Triton's statistics extension. Failure NOT_FOUND if unknown."""
    return {"model_stats": core.statistics(model, version)}


def check_name(model: str) -> str:
    """A model's name that may be looked for on disk: no path. Failure NOT_FOUND otherwise."""
    if not NAME.match(model):
        raise Failure(Reason.NOT_FOUND, f"there is no model {show(model)}")
    return model


def _inputs(version: Version) -> list[tuple[str, str, tuple[int, ...]]]:
    if version.fields:
        return [
            ("dense", "FP32", (-1, fields.NUMBERS)),
            ("sparse", "BYTES", (-1, fields.CATEGORIES)),
            ("text", "BYTES", (-1,)),
        ]
    texts: tuple[str, ...] = ("text", "text_pair") if version.pair else ("text",)
    texts = tuple(QUESTION) if version.answers_questions else texts
    return [
        *((name, "BYTES", (-1,)) for name in texts),
        *((name, "INT64", (-1, -1)) for name in IDS),
    ]
