# ruff: noqa: ARG002  a callback's methods have the arguments of the interface, used or not
"""A rank of `bench scaling`: the real training loop, in segments.

`python -m fleetbert.bench.ours_scaling job.json`. It says hello before it meets the other ranks,
and starts when told to.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import paddle
import paddle.distributed as dist

from fleetbert import config as schema
from fleetbert.bench import worker
from fleetbert.bench.ours_train import Pacer
from fleetbert.errors import UserError
from fleetbert.train.callbacks import build
from fleetbert.train.loop import Run, versions
from fleetbert.train.strategies import connect
from fleetbert.train.texts import open_task

# What Fleet puts into one all-reduce at most (DistributedStrategy.fuse_grad_size_in_MB).
BUCKET = 32 << 20


class BothWays:
    """Does each step twice, with and without the ranks' sharing of gradients, by turns first.

    Both are timed from when all ranks start until all are done, so that the time one rank waits
    for another is in both, and what they differ by is the sharing. `pairs`: seconds (with, without)
    """

    def __init__(self, strategy: Any):
        self.strategy, self.plain = strategy, strategy.step
        self.pairs: list[tuple[float, float]] = []

    def step(self, arrays: Any) -> Any:
        seconds = {}
        first = len(self.pairs) % 2 == 0
        for shared in (first, not first):
            self.strategy.any(False)
            began = time.perf_counter()
            with contextlib.nullcontext() if shared else self.strategy.without_sync():
                done = self.plain(arrays)
            self.strategy.any(False)
            seconds[shared] = time.perf_counter() - began
        self.pairs.append((seconds[True], seconds[False]))
        return done


class ScalingPacer(Pacer):
    """A pacer that also reports the reading, and does steps both ways when a command says so."""

    def before_reading(self, run: Any) -> None:
        super().before_reading(run)
        report = self.segments.report
        assert report is not None
        if report["steps"] == 0:
            both = BothWays(run.strategy)
            wanted = self.segments.command.get("both_ways")
            run.strategy.step = (
                both.step if wanted else type(run.strategy).step.__get__(run.strategy)
            )
            report.update(pairs=both.pairs, reading=0.0)
        self.began = time.perf_counter()

    def after_reading(self, run: Any) -> None:
        if not self.segments.untimed:
            assert self.segments.report is not None
            self.segments.report["reading"] += time.perf_counter() - self.began


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


def main() -> None:
    channel = worker.Channel()
    wanted = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        channel.send(versions=versions())
        channel.receive()
        job = schema.load(wanted["config"], wanted["overrides"])
        strategy = connect(job)
        task = open_task(job)
        run = Run(job, strategy, task)
        run.callbacks = build(run)
        weights = [p for p in task.network.parameters() if not p.stop_gradient]
        parameters = sum(int(weight.size) for weight in weights)
        segments = worker.Segments(channel)
        run.callbacks.insert(0, ScalingPacer(segments))
        run.folder.mkdir(parents=True, exist_ok=True)
        channel.send(
            world_size=run.strategy.world_size,
            parameters=parameters,
            all_reduce=all_reduce_seconds(parameters) if run.strategy.world_size > 1 else [],
            texts=len(task.train.labels),
            mean_tokens=float(task.train.encodings.lengths.mean()),
        )
        run.train()
    except UserError as error:
        channel.send(error=str(error))
    except worker.Stop:
        pass


if __name__ == "__main__":
    main()
