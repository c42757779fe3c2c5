"""What the fake core's models tell, over whichever protocol they are asked."""

from __future__ import annotations

import struct
from typing import Any, Mapping

import fake_core
import grpc
import numpy as np

from fleetbert.tasks.metrics import softmax

CODE = grpc.StatusCode
TEXTS = ["good good", "bad", "a text of more than sixteen characters"]
# Model, version ("": none is named) and whether it is ready; None: there is none.
READINESS = [
    ("sst", "", True),
    ("sst", "1", True),
    ("sst", "stable", True),
    ("sst", "3", False),
    ("loading", "", False),
    ("sst", "4", None),
    ("nobody", "", None),
]
# Model, its codes over HTTP and gRPC, and words of what they say.
FAILURES = [
    ("full", 503, CODE.UNAVAILABLE, "the queue of model full is full"),
    ("lost", 503, CODE.UNAVAILABLE, "a worker was lost"),
    ("late", 504, CODE.DEADLINE_EXCEEDED, "the timeout of 10 ms has passed"),
    ("broken", 500, CODE.INTERNAL, "the server failed"),
    ("loading", 503, CODE.UNAVAILABLE, "not ready"),
    ("nobody", 404, CODE.NOT_FOUND, "there is no model 'nobody'"),
]


def outputs_of(logits: np.ndarray) -> dict[str, np.ndarray]:
    """All outputs of a classifier, by name and in their order."""
    return {
        "label": np.array([fake_core.LABELS[row] for row in logits.argmax(axis=1)]),
        "scores": softmax(logits).astype(np.float32),
        "logits": logits,
        "exit_layer": np.arange(1, len(logits) + 1, dtype=np.int32),
    }


def check_outputs(found: Mapping[str, Any], expected: Mapping[str, np.ndarray]) -> None:
    """`found`: values by the outputs' names, flat or of their shape."""
    assert list(found) == list(expected)
    for name, values in expected.items():
        own = np.array(found[name], values.dtype).reshape(values.shape)
        np.testing.assert_array_equal(own, values, name)


def read_raw(datatype: str, raw: bytes) -> list[Any]:
    """The elements of a raw tensor."""
    if datatype != "BYTES":
        return np.frombuffer(raw, {"FP32": "<f4", "INT32": "<i4"}[datatype]).tolist()
    found, position = [], 0
    while position < len(raw):
        (length,) = struct.unpack_from("<I", raw, position)
        found.append(raw[position + 4 : position + 4 + length].decode())
        position += 4 + length
    return found
