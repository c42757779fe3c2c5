"""One process, one device: forward, backward and the optimizer's step."""

from __future__ import annotations

import contextlib
import gc
import math
from typing import Any, Callable, ContextManager, Dict, NamedTuple, TypeVar

import paddle
from paddle import nn
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from fleetbert.compat import training
from fleetbert.compat.touched_rows import TouchedRows
from fleetbert.core.errors import UserError
from fleetbert.tasks import Arrays, Part
from fleetbert.training.precision import Precision
from fleetbert.training.trainable import Trainable

T = TypeVar("T")
# Tensors and numbers to save by name, in dicts.
Tensors = Dict[str, Any]


class Step(NamedTuple):
    """The result of one optimizer step on this rank."""

    loss: float  # this rank's share: over all ranks they add up to the mean loss of the step
    skipped: bool  # the GradScaler found infinite gradients, left the weights alone and backs off
    bad: bool  # loss or gradients are not finite on some rank; the weights were left alone


class Single:
    member = "rank"  # what users call one of the processes
    rank = 0
    world_size = 1
    syncs_late = False  # gradients are shared after the last backward, not during it
    rejoins = False  # this rank was killed, and is started again while the others go on

    def __init__(self, device: str):
        self.device = device
        self.on_gradients: Callable[[], object] = lambda: None  # before an update; the loop's
        self.words: TouchedRows | None = None  # whose rows an update moves; see touched_rows.py

    def prepare(
        self, task: Trainable, optimizer: Optimizer, schedule: LRScheduler, precision: Precision
    ) -> None:
        """Set what is trained: `task.network`, its optimizer, schedule and precision."""
        self.task = task
        self.table = task.table
        self.schedule = schedule
        self.precision = precision
        task.network, self.optimizer = precision.decorate(task.network, optimizer)
        self.model = task.network
        self.scaler = precision.scaler
        self.wrap()

    def wrap(self) -> None:
        """Wrap model, optimizer and scaler for several ranks; a single process needs none."""

    def without_sync(self) -> ContextManager[object]:
        """Return the context for all micro-batches of a step but the last."""
        return contextlib.nullcontext()

    def sync_gradients(self) -> None:
        """Average the gradients over all ranks, if `syncs_late`."""

    def step(self, micro_batches: list[Arrays]) -> Step:
        """One optimizer step over this rank's micro-batches (arrays of `task.micro_batches`)."""
        self.model.train()
        self.take_rows(micro_batches)
        loss = 0.0
        passes = (self.task.loss, self.task.again)[: self.task.passes]
        turns = [(of, arrays) for arrays in micro_batches for of in passes]
        for number, (of, arrays) in enumerate(turns, 1):
            last = number == len(turns)
            during = last and not self.syncs_late
            with contextlib.nullcontext() if during else self.without_sync():
                with self.precision.step():
                    part = of(self.model, arrays)
                # Ranks average their gradients; a step's gradient is their sum. A loss that is not
                # finite makes all gradients NaN, and so tells the other ranks without a message.
                factor = part.detach() * 0.0 + self.world_size * self.precision.factor
                scaled = self.scaler.scale(part * factor)
                with training.interrupt_waits():
                    scaled.backward()
            loss += float(part)
        if self.syncs_late:
            self.sync_gradients()
        self.precision.prepare_gradients()
        self.on_gradients()
        self.scaler.step(self.optimizer)
        if training.found_infinite(self.scaler):
            bad = self.any(not math.isfinite(loss)) or not self.precision.can_back_off
            skipped = not bad
        else:
            bad, skipped = not training.gradients_were_finite(self.optimizer), False
        self.scaler.update()
        # Freed, not zeroed: the next step's activations need the memory first (MiniLM: 150 MB).
        self.optimizer.clear_grad(set_to_zero=False)
        if not (bad or skipped):
            if self.table is not None:
                self.table.learn(self.schedule.last_lr)
            self.schedule.step()
        self.push_rows()
        return Step(loss, skipped, bad)

    def take_rows(self, micro_batches: list[Arrays], learning: bool = True) -> None:
        """Add the rows of the task's table that batches need, if there is a table."""
        if self.table is not None:
            self.table.take(micro_batches, learning)

    def push_rows(self) -> None:
        """Add what a step changed to the task's table, if there is one."""
        if self.table is not None:
            self.table.push(1.0)

    def loss(self, arrays: Arrays) -> float:
        """Return `task.loss` on one batch, without dropout and gradients."""
        return self._without_gradients(lambda net: float(self.task.loss(net, arrays)), arrays)

    def predict(self, arrays: Arrays) -> Part:
        """Return `task.predict` on one evaluation batch, without gradients."""
        return self._without_gradients(lambda net: self.task.predict(net, arrays), arrays)

    def _without_gradients(self, work: Callable[[nn.Layer], T], arrays: Arrays) -> T:
        network = self.task.network
        network.eval()
        Single.synchronize(self)  # of this rank alone
        self.take_rows([arrays], learning=False)
        if self.table is not None:
            self.table.forget()  # nothing is left to push between steps
        with paddle.no_grad(), self.precision.forward():
            return work(network)

    def state(self) -> Tensors:
        """Return the tensors to save: weights, and the optimizer with its schedule.

        Both under the weights' names in the network: Paddle's own names for parameters
        (`linear_3.w_0`) count what a process has built.
        """
        network = self.task.network
        names = {parameter.name: name for name, parameter in network.named_parameters()}
        optimizer = training.rename_state(self.optimizer.state_dict(), names)
        return {"model": network.state_dict(), "optimizer": optimizer}

    def set_state(self, state: Tensors) -> None:
        network = self.task.network
        names = {name: parameter.name for name, parameter in network.named_parameters()}
        network.set_state_dict(state["model"])
        optimizer = training.rename_state(state["optimizer"], names)
        optimizer.pop("trainers", None)  # of a parameter server's other trainers
        training.name_master_weights(optimizer)
        self.optimizer.set_state_dict(optimizer)
        self.schedule.last_lr = self.schedule.get_lr()  # of this job's steps, which may be more

    def release(self) -> None:
        """Free the optimizer's states, twice the weights. Nothing can be trained or saved then."""
        Single.synchronize(self)
        del self.optimizer
        self.words = self.precision.functions = None
        gc.collect()  # the optimizer and its parameters know each other

    def synchronize(self, saving: bool = False) -> None:
        """Give `task.network` the weights that all ranks have learned. Called on all ranks before
        evaluations, and with `saving` before `state` is saved."""
        if self.words is not None:
            self.words.settle()

    def share_loss(self, part: float) -> float:
        """Return the mean loss of a step from this rank's share of it (`Step.loss`)."""
        return sum(self.gather(part))

    def gather(self, value: T) -> list[T]:
        """Return each rank's value, in rank order, on every rank."""
        return [value]

    def from_first(self, make: Callable[[], T]) -> T:
        """Return the result of `make`, which only the first rank calls, however long it takes."""
        return make()

    def any(self, flag: bool) -> bool:
        """Return whether the flag of any rank is set; cheap enough for every step."""
        return flag

    def any_asked_to_stop(self, is_asked: bool) -> bool:
        """Return whether any rank is asked to stop; called by all before each batch of an
        evaluation, so that none waits long for another."""
        return self.any(is_asked)

    def on_first(self, work: Callable[[], None]) -> None:
        """Run `work` on the first rank while the others wait, however long it takes.

        Where it fails all ranks do: the first with its error, the others with a UserError.
        """
        error: BaseException | None = None
        if self.rank == 0:
            try:
                work()
            except BaseException as raised:
                error = raised
        failed = self.first_failed(error is not None)
        if error is not None:
            raise error
        if failed:
            raise UserError(f"the first {self.member} failed: see its messages")

    def first_failed(self, failed: bool) -> bool:
        """Return the flag of the first rank; the others wait for it, however long it takes."""
        return failed

    def barrier(self) -> None:
        """Wait for the other ranks, however long they take."""

    def rejoin(self) -> Tensors:
        """Catch up with the others, if `rejoins`; return this rank's `loop.State`."""
        raise NotImplementedError

    def figures(self) -> dict[str, float]:
        """Return the strategy's figures for a row of metrics.jsonl, on the first rank."""
        return {}

    def summary(self) -> dict[str, object]:
        """Return the strategy's figures of the whole run, on the first rank."""
        return {}

    def remember(self, state: Callable[[], dict[str, object]]) -> None:
        """Save this rank's `loop.State` for `rejoin`, after a step and all callbacks."""

    def close(self) -> None:
        """End the strategy; the last call, on all ranks."""
