"""The Open Inference Protocol v2 without its transports: what is asked, and what is answered.

https://github.com/kserve/open-inference-protocol (specification/protocol) and, for statistics and
the repository, the extensions of Triton's docs/protocol. `rest` and `grpc_service` turn bytes
into the words that are used here and back.
"""

from __future__ import annotations

import re
from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np

import fleetbert
from fleetbert.deploy.inference.messages import (
    Core,
    Failure,
    Question,
    Reason,
    Reply,
    State,
    Statistics,
    Version,
)
from fleetbert.deploy.inference.protocol.tensors import (
    Output,
    Tensor,
    read_integers,
    read_texts,
    refuse,
    show,
)
from fleetbert.deploy.inference.settings import Safety

SERVER = "fleetbert"
PLATFORM = "paddle_inference"
# In Triton's words, and for both protocols.
EXTENSIONS = ("binary_tensor_data", "parameters", "model_repository", "statistics")
INPUTS = ("text", "text_pair", "input_ids", "token_type_ids")
OUTPUTS = ("label", "scores", "logits", "exit_layer")
TOKEN_TYPES = 2  # BERT's segments
# A timer has to hold it; whoever waits longer than a day waits for ever.
LONGEST_TIMEOUT = 86400.0
# Of a question's id in logs; what the client gets back is not cut.
LOGGED_ID = 128
# Of Triton's extensions that this server does not have: what they ask for would be left out.
NOT_OFFERED = ("shared_memory_region", "classification")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}\Z")


class Request(NamedTuple):
    """An inference request as it was sent: nothing of it is checked against a model yet."""

    id: str
    parameters: Mapping[str, Any]
    inputs: Sequence[Tensor]
    outputs: Sequence[str]  # none: all


def server_metadata() -> dict[str, Any]:
    """Name, version and extensions."""
    return {"name": SERVER, "version": fleetbert.__version__, "extensions": list(EXTENSIONS)}


def model_metadata(core: Core, model: str, version: str | None = None) -> dict[str, Any]:
    """Of the version that a question with these words would go to; Failure as in `Core.find`."""
    found = core.find(model, version)
    texts = ("text", "text_pair") if found.pair else ("text",)
    labels = len(found.labels)
    tensors = [(name, "BYTES", [-1]) for name in texts]
    tensors += [(name, "INT64", [-1, -1]) for name in ("input_ids", "token_type_ids")]
    answers = (("BYTES", [-1]), ("FP32", [-1, labels]), ("FP32", [-1, labels]), ("INT32", [-1]))
    ready = (other for other in core.versions(model) if other.state is State.READY)
    return {
        "name": found.model,
        "versions": [other.version for other in ready],
        "platform": PLATFORM,
        "inputs": [_tensor_metadata(*tensor) for tensor in tensors],
        "outputs": [_tensor_metadata(name, *rest) for name, rest in zip(OUTPUTS, answers)],
        "parameters": {
            "labels": list(found.labels),
            "max_length": found.max_length,
            "variant": found.variant,
        },
    }


def is_ready(core: Core, model: str, version: str | None = None) -> bool:
    """Whether a question with these words would be answered; Failure NOT_FOUND if unknown."""
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


def statistics(core: Core, model: str | None = None, version: str | None = None) -> dict[str, Any]:
    """`model_stats` of Triton's statistics extension. Failure NOT_FOUND if unknown."""
    return {"model_stats": [_version_statistics(s) for s in core.statistics(model, version)]}


def check_name(model: str) -> str:
    """A model's name that may be looked for on disk: no path. Failure NOT_FOUND otherwise."""
    if not NAME.match(model):
        raise Failure(Reason.NOT_FOUND, f"there is no model {show(model)}")
    return model


def check_repository_parameters(parameters: Any) -> None:
    """Of load and unload: what they ask for is either had or refused. Failure BAD_REQUEST."""
    if not isinstance(parameters, Mapping):
        raise refuse(f"parameters are {show(parameters)}; they have to be an object")
    for key in parameters:
        if key != "unload_dependents":  # a bundle has none
            raise refuse(
                f"parameter {show(key)} is not offered: a model is served as the server's "
                "settings say"
            )


def check_tensor_parameters(parameters: Mapping[str, Any], where: str) -> None:
    """Of an input or output, called `where`. Failure BAD_REQUEST for what this server has not."""
    for key in NOT_OFFERED:
        if key in parameters:
            raise refuse(f"parameter '{key}' of {where} is not offered by this server")


def read_question(
    request: Request, found: Version, version: str | None, safety: Safety, log_id: str = ""
) -> Question:
    """The question that `request` asks the version `found`, which it named `version`.

    `log_id` stands for a request without an id. Failure BAD_REQUEST or TOO_LARGE, with the field
    that is wrong.
    """
    inputs = {tensor.name: tensor for tensor in request.inputs}
    if len(inputs) != len(request.inputs):
        raise refuse(f"input '{_repeated(t.name for t in request.inputs)}' is given twice")
    for name in inputs:
        if name not in INPUTS or (name == "text_pair" and not found.pair):
            takes = "text and text_pair" if found.pair else "text"
            raise refuse(
                f"input {show(name)} is unknown; model {found.model} takes {takes}, "
                "or input_ids and token_type_ids"
            )
    for name in request.outputs:
        if name not in OUTPUTS:
            raise refuse(f"output {show(name)} is unknown; choose from {', '.join(OUTPUTS)}")
    if len(set(request.outputs)) != len(request.outputs):
        raise refuse(f"output '{_repeated(request.outputs)}' is asked for twice")
    texts = texts_b = input_ids = token_type_ids = None
    if "text" in inputs:
        texts, texts_b = _read_texts(inputs, found, safety)
    else:
        input_ids, token_type_ids = _read_ids(inputs, found, safety)
    return Question(
        found.model,
        version,
        texts,
        texts_b,
        input_ids,
        token_type_ids,
        _read_speed(request.parameters),
        _read_timeout(request.parameters),
        (request.id or log_id)[:LOGGED_ID],
    )


def outputs(reply: Reply, names: Sequence[str] = ()) -> list[Output]:
    """The outputs `names` (none: all) of a reply, in that order."""
    count, labels = reply.logits.shape
    found = []
    for name in names or OUTPUTS:
        if name == "label":
            found.append(Output(name, "BYTES", (count,), reply.labels))
        elif name == "scores":
            found.append(Output(name, "FP32", (count, labels), reply.scores))
        elif name == "logits":
            found.append(Output(name, "FP32", (count, labels), reply.logits))
        else:
            found.append(Output(name, "INT32", (count,), reply.exit_layer))
    return found


def _read_texts(
    inputs: Mapping[str, Tensor], found: Version, safety: Safety
) -> tuple[list[str], list[str] | None]:
    if len(inputs) > 1:
        for name in ("input_ids", "token_type_ids"):
            if name in inputs:
                raise refuse(
                    f"input 'text' and input '{name}' are both given; send one or the other"
                )
    texts = read_texts(inputs["text"], safety.max_texts, safety.max_text_bytes)
    if not found.pair:
        return texts, None
    if "text_pair" not in inputs:
        raise refuse(f"input 'text_pair' is missing: model {found.model} answers pairs of texts")
    texts_b = read_texts(inputs["text_pair"], safety.max_texts, safety.max_text_bytes)
    if len(texts_b) != len(texts):
        raise refuse(
            f"input 'text_pair' has {len(texts_b)} texts, but input 'text' has {len(texts)}"
        )
    return texts, texts_b


def _read_ids(
    inputs: Mapping[str, Tensor], found: Version, safety: Safety
) -> tuple[np.ndarray, np.ndarray | None]:
    if "input_ids" not in inputs:
        raise refuse("inputs hold neither 'text' nor 'input_ids'; send one of them")
    if "text_pair" in inputs:
        raise refuse("input 'text_pair' goes with input 'text', not with 'input_ids'")
    size = (safety.max_texts, found.max_length)
    ids = read_integers(inputs["input_ids"], *size, found.vocab_size, "the model's token ids")
    if "token_type_ids" not in inputs:
        return ids, None
    types = read_integers(inputs["token_type_ids"], *size, TOKEN_TYPES, "token types")
    if types.shape != ids.shape:
        raise refuse(
            f"shape of input 'token_type_ids' is {list(types.shape)}, but that of 'input_ids' is "
            f"{list(ids.shape)}"
        )
    return ids, types


def _read_speed(parameters: Mapping[str, Any]) -> float | None:
    """From 0 (slowest, all layers) to 1; a string too, for clients whose protocol has no floats."""
    speed = parameters.get("speed")
    if speed is None:
        return None
    try:
        if isinstance(speed, bool) or not 0 <= float(speed) <= 1:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise refuse(
            f"parameter 'speed' is {show(speed)}; it has to be a number from 0 to 1"
        ) from None
    return float(speed)


def _read_timeout(parameters: Mapping[str, Any]) -> float | None:
    """Seconds; None where the server's default holds."""
    timeout = parameters.get("timeout")
    if timeout is None:
        return None
    if type(timeout) is not int or timeout < 0:
        raise refuse(
            f"parameter 'timeout' is {show(timeout)}; it has to be a whole number of microseconds"
        )
    return min(timeout / 1e6, LONGEST_TIMEOUT) or None


def _repeated(names: Any) -> str:
    seen: set[str] = set()
    return next(show(name)[1:-1] for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]


def _tensor_metadata(name: str, datatype: str, shape: list[int]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape}


def _version_statistics(found: Statistics) -> dict[str, Any]:
    nothing = _duration((0, 0))  # tokenizing and answering are not told apart from computing
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
                "compute_input": nothing,
                "compute_infer": _duration((count, nanoseconds)),
                "compute_output": nothing,
            }
            for texts, count, nanoseconds in found.batches
        ],
    }


def _duration(value: tuple[int, int]) -> dict[str, int]:
    return {"count": value[0], "ns": value[1]}
