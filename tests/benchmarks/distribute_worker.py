"""A rank, trainer or server of `distribute.py`; `fleetbert.bench.train_worker` says how it works.

A server says hello and serves until it is killed.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import paddle
import paddle.distributed as dist

from fleetbert import config as schema
from fleetbert.bench import train_worker, worker
from fleetbert.bench.worker import Json
from fleetbert.train.loop import Run
from fleetbert.train.strategies.parameter_server import server

# What Fleet puts into one all-reduce at most (DistributedStrategy.fuse_grad_size_in_MB).
BUCKET = 32 << 20


class Rank(train_worker.Pacer):
    """A pacer that also tells how long sharing the gradients takes by itself."""

    def facts(self, run: Run) -> Json:
        weights = [p for p in run.task.network.parameters() if not p.stop_gradient]
        parameters = sum(int(weight.size) for weight in weights)
        ranks = run.job.strategy.name == "collective"
        seconds = all_reduce_seconds(parameters) if ranks else []
        return {**super().facts(run), "parameters": parameters, "all_reduce": seconds}


def all_reduce_seconds(parameters: int, times: int = 5) -> list[float]:
    """Of sharing so many float32 gradients when nothing else runs; the first time is left out."""
    sizes = [BUCKET // 4] * (parameters * 4 // BUCKET) + [parameters % (BUCKET // 4)]
    buckets = [paddle.zeros([size]) for size in sizes if size]
    seconds = []
    for _ in range(times + 1):
        dist.barrier()
        began = time.perf_counter()
        for bucket in buckets:
            dist.all_reduce(bucket)
        seconds.append(time.perf_counter() - began)
    return seconds[1:]


if __name__ == "__main__":
    if server.is_server():
        worker.Channel().send()
        said = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
        server.serve(schema.load(said["config"], said["overrides"]))
    else:
        train_worker.main(Rank)
