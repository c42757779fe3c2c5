"""Data parallel over Fleet's collective mode: NCCL between GPUs, gloo between CPU processes."""

from __future__ import annotations

import contextlib
import os
from typing import Callable, ContextManager

import paddle
import paddle.distributed as dist
from paddle.distributed import fleet
from paddle.distributed.fleet.utils.hybrid_parallel_util import fused_allreduce_gradients

from fleetbert import config as schema
from fleetbert.compat import training
from fleetbert.core.errors import UserError
from fleetbert.graph import bfloat16
from fleetbert.launch import heartbeat
from fleetbert.training.strategies import fleet_keys
from fleetbert.training.strategies.single import Single, T, Tensors


class Collective(Single):
    def __init__(self, device: str, settings: schema.Strategy):
        super().__init__(device)
        self.rounds = settings.gradients == "bfloat16"
        self.syncs_late = self.rounds  # what Paddle sends during the backward is float32
        strategy = fleet_keys.read(settings.fleet, int(os.environ["PADDLE_TRAINERS_NUM"]))
        # Each rank keeps the optimizer's state of its share of the parameters (ZeRO, stage 1).
        self.sharded = strategy.hybrid_configs["sharding_degree"] > 1
        if self.sharded and self.rounds:
            raise UserError(
                "strategy.gradients: with a sharding_degree in strategy.fleet they are exchanged "
                "in float32; leave one of both out"
            )
        self.optimizers: list[Tensors] = []  # of all ranks, while a checkpoint is written
        heartbeat.note_phase(heartbeat.JOINING)
        training.join_ranks(strategy)
        heartbeat.note_phase(heartbeat.JOINED)
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.barriers = 0

    def wrap(self) -> None:
        self.model = fleet.distributed_model(self.task.network)
        self.optimizer = fleet.distributed_optimizer(self.optimizer)
        self.scaler = fleet.distributed_scaler(self.scaler)
        if self.sharded:
            share = training.share_of(self.optimizer)
            clip = self.optimizer._grad_clip
            clip.share, clip.add_up = {parameter.name for parameter in share}, dist.all_reduce

    def without_sync(self) -> ContextManager[object]:
        if self.sharded:  # Fleet's optimizer shares the gradients
            return contextlib.nullcontext()
        no_sync: ContextManager[object] = self.model.no_sync()
        return no_sync

    def synchronize(self, saving: bool = False) -> None:
        if self.sharded and saving:
            optimizers = self.gather(training.to_arrays(super().state()["optimizer"]))
            self.optimizers = optimizers if self.rank == 0 else []

    def state(self) -> Tensors:
        """Return the tensors to save; of a sharded optimizer on the first rank, after
        `synchronize(saving=True)`."""
        state = super().state()
        for optimizer in map(training.to_tensors, self.optimizers):
            masters = optimizer.pop("master_weights", {})
            state["optimizer"].update(optimizer)
            if masters:
                state["optimizer"].setdefault("master_weights", {}).update(masters)
        self.optimizers = []
        return state

    def sync_gradients(self) -> None:
        if self.sharded:
            return
        parameters = list(self.task.network.parameters())
        if self.rounds:
            _average_rounded([p.grad for p in parameters if p.grad is not None], self.world_size)
        else:
            fused_allreduce_gradients(parameters, None)

    def gather(self, value: T) -> list[T]:
        values: list[T] = []
        dist.all_gather_object(values, value)
        return values

    def from_first(self, make: Callable[[], T]) -> T:
        made = [make()] if self.rank == 0 else []
        self.barrier()  # `gather` does not wait for long
        return self.gather(made)[0][0]

    def any(self, flag: bool) -> bool:
        flags = paddle.to_tensor([int(flag)], "int32")
        dist.all_reduce(flags, op=dist.ReduceOp.MAX)
        return bool(flags.item())

    def first_failed(self, failed: bool) -> bool:
        return self._wait(failed)

    def barrier(self) -> None:
        self._wait()

    def _wait(self, failed: bool = False) -> bool:
        self.barriers += 1
        name = f"fleetbert-barrier-{self.barriers}"
        return training.wait_for_ranks(name, self.rank, self.world_size, failed)


@paddle.no_grad()
def _average_rounded(gradients: list[paddle.Tensor], ranks: int) -> None:
    """The mean over all ranks in place, each of them and their sum in bfloat16."""
    whole = paddle.concat([gradient.flatten() for gradient in gradients]).scale_(1 / ranks)
    if training.cast_cuts_bits_off(whole):
        sent = paddle.to_tensor(bfloat16.rounded(whole.numpy()))
    else:
        sent = whole.astype("bfloat16")
    dist.all_reduce(sent)
    parts = sent.astype("float32").split([gradient.size for gradient in gradients])
    for gradient, part in zip(gradients, parts):
        gradient.set_value(part.reshape(gradient.shape))
