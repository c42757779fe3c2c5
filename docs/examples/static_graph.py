"""The steps of a training as a static graph through Fleet: what resnet.py and bert.py share."""

from __future__ import annotations

import os
import time
from typing import Callable, Sequence

import numpy as np

import fleetbert.compat.prepared  # noqa: F401  before the first import of paddle

import paddle  # isort: skip
import paddle.distributed as dist
from paddle import nn
from paddle.distributed import fleet
from paddle.optimizer import Optimizer

from fleetbert import config
from fleetbert.compat import versions
from fleetbert.training.trainable import Trainable


def train(
    task: Trainable,
    job: config.Config,
    build: Callable[[], nn.Layer],
    optimizer: Callable[[], Optimizer],
    parts: int,
) -> tuple[list[float], float]:
    """Losses of all steps, and the median of their seconds.

    `build` makes a network like the task's, whose weights it starts from. parts: of a step, on all
    ranks.
    Fleet's collective optimizer wants NCCL where there are several ranks (Paddle 2.6.2). CPU ranks
    share gradients over gloo by the functions that are public for it.
    """
    # 3.3.1: Fleet's minimize clones the program as 2.6.2's was (TypeError in fleet.py).
    versions.need_paddle_2("Training as a static graph through Fleet")
    rank, ranks, on_gpu = dist.get_rank(), dist.get_world_size(), paddle.is_compiled_with_cuda()
    weights = {name: tensor.numpy() for name, tensor in task.network.state_dict().items()}
    shard = slice(rank * parts // ranks, (rank + 1) * parts // ranks)
    plan = [(step, epoch) for epoch in range(job.trainer.epochs) for step in task.plan(epoch)]
    # Read first: paddle.vision's random crops are Python only in dynamic mode.
    steps = [
        task.collector.micro_batches(*step, parts, shard) for step in plan[: job.trainer.max_steps]
    ]

    paddle.enable_static()
    first = steps[0][0]
    variables = {**first, **{name: variable(name, first[name]) for name in ("labels", "weight")}}
    variables["inputs"] = {name: variable(name, array) for name, array in first["inputs"].items()}
    network = build()
    loss = task.loss(network, variables)  # the sum over parts is the mean over the step's examples
    if ranks == 1 or on_gpu:
        fleet.init(is_collective=True)
        strategy = fleet.DistributedStrategy()
        strategy.gradient_merge = parts > ranks
        strategy.gradient_merge_configs = {"k_steps": parts // ranks, "avg": False}
        # Fleet takes the mean of the ranks' gradients.
        fleet.distributed_optimizer(optimizer(), strategy).minimize(loss * ranks)
    else:
        endpoint = os.environ["PADDLE_TRAINER_ENDPOINTS"].split(",")[0]
        dist.gloo_init_parallel_env(rank, ranks, endpoint)
        inner = optimizer()
        pairs = inner.backward(loss)
        for _, gradient in pairs:
            dist.all_reduce(gradient)
        inner.apply_gradients(pairs)
    if ranks > 1:
        dist.all_reduce(loss)
    number = int(os.environ.get("FLAGS_selected_gpus", "0"))
    place = paddle.CUDAPlace(number) if on_gpu else paddle.CPUPlace()
    executor = paddle.static.Executor(place)
    executor.run(paddle.static.default_startup_program())
    for name, tensor in network.state_dict().items():
        paddle.static.global_scope().find_var(tensor.name).get_tensor().set(weights[name], place)

    losses, seconds = [], []
    for step in steps:
        began = time.perf_counter()
        total = 0.0
        for arrays in step:
            feed = {**arrays["inputs"], "labels": arrays["labels"], "weight": arrays["weight"]}
            total += float(executor.run(feed=feed, fetch_list=[loss])[0])
        losses.append(total)
        seconds.append(time.perf_counter() - began)
    return losses, float(np.median(seconds))


def variable(name: str, array: np.ndarray) -> paddle.static.Variable:
    """A place for arrays like this one, of any length and number."""
    shape = [None, *array.shape[1:]] if array.dtype.kind == "f" else [None] * array.ndim
    return paddle.static.data(name, shape, str(array.dtype))


def show(losses: Sequence[float]) -> None:
    print("losses:", *(f"{loss:.6f}" for loss in losses[:6]), "...", f"{losses[-1]:.6f}")
