"""Reads the arrays of steps, in the training process or ahead of it in worker processes.

`paddle.io.DataLoader` cannot do this. It forks the training process, with the locks of
Paddle's threads as they are; its workers import and seed Paddle; and they outlive a killed rank
for ever: `indices_queue.get(MP_STATUS_CHECK_INTERVAL)` in `dataloader/worker.py` gives the
interval as `block`, so a worker never looks whether its parent still lives.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Generator, Iterator, NamedTuple

import numpy as np

from fleetbert.core.errors import UserError
from fleetbert.data import workers
from fleetbert.tasks import Arrays
from fleetbert.tasks.collect import Collector

if TYPE_CHECKING:  # worker processes import this module, and have no use for Paddle
    from fleetbert.training.trainable import Trainable

# Steps that are ready or in work for each worker process, besides the one in training.
AHEAD = 3


class Read(NamedTuple):
    """One optimizer step's examples."""

    epoch: int
    epoch_steps: int  # steps in it
    indices: np.ndarray  # on all ranks
    arrays: list[Arrays]  # this rank's micro-batches


def read(
    task: Trainable, num_workers: int, start: tuple[int, int], steps: int, parts: int, shard: slice
) -> Generator[Read, None, None]:
    """Yield `steps` steps of `task`; `start`: the epoch and the position in it.

    They are the same for any `num_workers`. Each step is divided into `parts`; those in `shard` are
    this rank's. Close the generator to end the worker processes.
    """

    def collected_here(step: Read) -> Read:
        arrays = task.micro_batches(step.indices, step.epoch, parts, shard)
        return step._replace(arrays=arrays)

    if num_workers == 0:
        yield from map(collected_here, _planned(task, *start, steps))
        return
    futures: deque[tuple[Read, Future[list[Arrays]]]] = deque()
    with workers.start(num_workers, _take, task.collector) as pool:
        try:
            started = pool.submit(_collects)
            for step in _planned(task, *start, steps):
                if not started.done():  # it takes a second, in which training need not wait
                    yield collected_here(step)
                    continue
                future = pool.submit(_collect, step.indices, step.epoch, parts, shard)
                futures.append((step, future))
                if len(futures) > AHEAD * num_workers:
                    yield _received(task, *futures.popleft())
            while futures:
                yield _received(task, *futures.popleft())
        except BrokenProcessPool:
            raise UserError(
                "data.num_workers: a process that collects batches was killed (out of memory?); "
                "the same command goes on from the last checkpoint"
            ) from None
        finally:
            for _, future in futures:
                future.cancel()


def _planned(task: Trainable, epoch: int, position: int, steps: int) -> Iterator[Read]:
    while steps:
        plan = task.plan(epoch)
        for number in range(position, min(len(plan), position + steps)):
            steps -= 1
            yield Read(epoch, len(plan), plan[number].copy(), [])  # not a view that keeps the plan
        epoch, position = epoch + 1, 0
        del plan  # before the next one is made


def _received(task: Trainable, step: Read, future: Future[list[Arrays]]) -> Read:
    return step._replace(arrays=[task.tensors(part) for part in future.result()])


# The task's collector in a worker process.
_collector: Collector


def _take(collector: Collector) -> None:
    global _collector
    _collector = collector


def _collects() -> bool:
    return _collector is not None


def _collect(indices: np.ndarray, epoch: int, parts: int, shard: slice) -> list[Arrays]:
    return _collector.micro_batches(indices, epoch, parts, shard)
