"""One of two ranks of `network.py`: times of a step on encoders of MiniLM's size, as JSON."""

from __future__ import annotations

import json
import statistics
import sys
import time
from contextlib import nullcontext

import paddle
import paddle.distributed as dist
from paddle.distributed.fleet.utils.hybrid_parallel_util import fused_allreduce_gradients

WORDS, HIDDEN, LAYERS = 30522, 384, 6
TEXTS, LENGTH = 8, 64


class Encoder(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.words = paddle.nn.Embedding(WORDS, HIDDEN)
        layer = paddle.nn.TransformerEncoderLayer(HIDDEN, 12, 4 * HIDDEN, dropout=0.0)
        self.layers = paddle.nn.TransformerEncoder(layer, LAYERS)

    def forward(self, ids):
        return self.layers(self.words(ids)).mean()


def measure(rounds: int) -> dict[str, float]:
    """Median seconds of an all-reduce alone and of a forward and backward pass, where the
    gradients stay on the rank, are exchanged after it, and while it runs."""
    dist.init_parallel_env()
    encoder = Encoder()
    model = paddle.DataParallel(encoder)
    parameters = list(encoder.parameters())
    ids = paddle.randint(0, WORDS, (TEXTS, LENGTH))

    def step(overlaps: bool, after: bool) -> None:
        with nullcontext() if overlaps else model.no_sync():
            model(ids).backward()
        if after:
            fused_allreduce_gradients(parameters, None)

    sides = {
        "all-reduce": lambda: fused_allreduce_gradients(parameters, None),
        "alone": lambda: step(False, False),
        "after": lambda: step(False, True),
        "during": lambda: step(True, False),
    }
    step(True, False)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            dist.barrier()
            began = time.perf_counter()
            run()
            dist.barrier()
            seconds[name].append(time.perf_counter() - began)
            for parameter in parameters:
                parameter.clear_gradient()
    size = 4 * sum(int(parameter.size) for parameter in parameters)
    return {"bytes": size, **{name: statistics.median(times) for name, times in seconds.items()}}


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))), flush=True)
