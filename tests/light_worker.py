"""A worker process without Paddle, or any package: it starts at once. What is said to it is what
`workers/batches.py` understands; the answers of a "network" are sums of sines, see `logits_of`."""

from __future__ import annotations

import json
import math
import os
import socket
import struct
import sys
import time
from array import array
from pathlib import Path
from typing import Any, Sequence

LAYERS = 2
# texts/s, as they are "measured" with batches, and with one text
SPEEDS = {"float32": 1000.0, "onnx": 2000.0}
SINGLE_SPEEDS = {"float32": 300.0, "onnx": 200.0}
PREFIX = struct.Struct("<II")
PARAMETERS = "model.pdiparams"


def logits_of(parameters: Sequence[float], ids: Sequence[int], first_length: int) -> list[float]:
    """Of a text. parameters: a factor and a bias for each label; they tell bundles apart."""
    factor, *biases = parameters
    second = (len(ids) - first_length) / len(ids)
    return [
        sum(math.sin(factor * label * token) for token in ids) / len(ids) + bias + second
        for label, bias in enumerate(biases, 1)
    ]


class Worker:
    def __init__(self) -> None:
        self.opened: dict[str, array[float]] = {}
        self.to_lone_texts = 0.0  # added to what they are answered, where the file `alone` is there

    def open(self, head: dict[str, Any]) -> dict[str, Any]:
        time.sleep(float(os.environ.get("LIGHT_OPEN_SECONDS", "0")))
        folder = Path(head["bundle"], head["variant"])
        self.opened[head["variant"]] = array("f", (folder / PARAMETERS).read_bytes())
        self.to_lone_texts = float((folder / "alone").exists())
        return {"layers": LAYERS}

    def warm(self, head: dict[str, Any]) -> dict[str, Any]:
        return {}

    def measure(self, head: dict[str, Any]) -> dict[str, Any]:
        speeds = SINGLE_SPEEDS if head["shape"][0] == 1 else SPEEDS
        return {"texts_per_s": {name: speeds[name] for name in self.opened}}

    def run(self, head: dict[str, Any], body: bytes) -> bytes:
        values, count = array("i", body), head["texts"]
        lengths, firsts, ids = values[:count], values[count : 2 * count], values[2 * count :]
        logits, layers = array("f"), array("i", [LAYERS] * count)
        for length, first in zip(lengths, firsts):
            logits.extend(logits_of(self.opened[head["variant"]], ids[:length], first))
            del ids[:length]
        if count == 1:
            logits = array("f", (logit + self.to_lone_texts for logit in logits))
        answer = {"seconds": 1e-4 * count, "shapes": [[count, max(lengths)]]}
        return pack(answer, logits.tobytes() + layers.tobytes())


def pack(head: dict[str, Any], body: bytes = b"") -> bytes:
    text = json.dumps(head).encode()
    return PREFIX.pack(len(text), len(body)) + text + body


def serve(channel: socket.socket) -> None:
    """Answer frames until the parent closes the socket or has ended."""
    worker = Worker()
    with channel.makefile("rb") as frames:
        while prefix := frames.read(PREFIX.size):
            head_size, body_size = PREFIX.unpack(prefix)
            head, body = json.loads(frames.read(head_size)), frames.read(body_size)
            try:
                if head["do"] == "run":
                    answer = worker.run(head, body)
                else:
                    answer = pack(getattr(worker, head["do"])(head))
            except Exception as error:
                told = f"{type(error).__name__}: {error}"
                answer = pack({"error": told, "of_system": isinstance(error, OSError)})
            channel.sendall(answer)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
