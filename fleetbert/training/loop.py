"""The training loop. All else is a callback."""

from __future__ import annotations

import contextlib
import logging
import math
import platform
import random
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Callable

import numpy as np
import paddle

import fleetbert
from fleetbert import config as schema
from fleetbert.core.errors import UserError
from fleetbert.launch import heartbeat
from fleetbert.models.bert import EncoderLayer
from fleetbert.tasks import Arrays, Metrics
from fleetbert.training import (
    bad_steps,
    checkpoint,
    compiled,
    optimizer,
    precision,
    reader,
    same_job,
    sparse_table,
    touched_rows,
)
from fleetbert.training.strategies.single import Single, Step
from fleetbert.training.trainable import Described, Trainable

log = logging.getLogger(__name__)

Row = Described  # of metrics.jsonl
Summary = Described


@dataclass
class State:
    """The state of a run, which every checkpoint keeps."""

    step: int = 0  # optimizer steps done, skipped ones too
    epoch: int = 0
    position: int = 0  # steps done in this epoch
    skipped: int = 0  # steps that the GradScaler skipped
    bad_steps: int = 0  # see bad_steps.py
    bad_in_a_row: int = 0
    best: Metrics = field(default_factory=dict)  # of the best evaluation
    watched: float | None = None  # see callbacks/early_stopping.py
    in_vain: int = 0
    evaluation_due: bool = False  # a signal stopped the one after this step


class Callback:
    """Hooks of the training loop, in the order of their calls. By default they do nothing."""

    def on_start(self, run: Run) -> None:
        """Called before the first step. A resumed run has its state already."""

    def before_reading(self, run: Run) -> None:
        """Called before a step's texts are collected."""

    def after_reading(self, run: Run) -> None:
        """Called when the step's arrays are ready, before anything is computed."""

    def on_gradients(self, run: Run) -> None:
        """Called after the last backward pass of a step, before the update. `parameter.grad` is
        this rank's, and is multiplied by `run.precision.scale`. A callback that has this method
        makes AdamW on a CPU move all rows of the words' table (docs/speed.md)."""

    def on_step(self, run: Run) -> None:
        """Called after each optimizer step; `run.state.step` already counts it. A callback that
        reads weights calls `run.strategy.synchronize()` first: some are still to be decayed."""

    def on_log(self, run: Run, row: Row) -> None:
        """Called every `trainer.log_every` steps, on every rank, with the row for metrics.jsonl."""

    def on_evaluation(self, run: Run, metrics: Metrics) -> None:
        """Called after each evaluation, on every rank."""

    def on_end(self, run: Run, summary: Summary) -> None:
        """Called after the last step. `summary` is not written yet, so you may add to it."""

    def close(self, run: Run) -> None:
        """Called last, also after an error."""


class Run:
    """A running training job, which callbacks receive. `callbacks` are called in their order."""

    def __init__(self, job: schema.Config, connected: Single, task: Trainable):
        self.job, self.strategy, self.task = job, connected, task
        self.callbacks: list[Callback] = []
        self.folder = Path(job.output_dir)
        self.state = State()
        self.total_steps = self._count_steps()
        self.precision = precision.choose(job.precision, connected.device, _float32(job, task))
        if job.trainer.compile:  # needs Paddle's own layers: oneDNN's calls cannot be traced
            compiled.compile_training(task.network, connected.device)
            self.precision.functions = None
        if job.precision.level == "auto" and connected.world_size > 1:
            _check_alike(connected.gather(self.precision.name))
        if job.trainer.recompute:
            for layer in task.network.sublayers():
                if isinstance(layer, EncoderLayer):
                    layer.recomputes = True
            connected.syncs_late = True  # a backward within the backward, which hides from Paddle's
        adamw, schedule = optimizer.build(job.optimizer, task.network, self.total_steps)
        connected.prepare(task, adamw, schedule, self.precision)
        connected.on_gradients = lambda: self.each(lambda callback: callback.on_gradients(self))
        self.step_texts = self.step_tokens = 0  # of the last step, on this rank
        self.texts = self.tokens = 0  # of all steps of this process
        self.evaluated: Metrics = {}  # the last evaluation of this process, as `State.best`
        self.resumed_at = 0  # the step that this process went on from
        self.reading = 0.0  # seconds spent collecting them
        self.seconds = 0.0  # that they took, without evaluation and checkpoints

    def _count_steps(self) -> int:
        settings = self.job.trainer
        steps = 0
        for epoch in range(settings.epochs):
            steps += len(self.task.plan(epoch))
            if settings.max_steps and steps >= settings.max_steps:
                return settings.max_steps
        return steps

    def each(self, call: Callable[[Callback], None]) -> None:
        """Call a hook of all callbacks."""
        for callback in self.callbacks:
            call(callback)

    def is_due(self, every: int | None) -> bool:
        """Whether something that is done every so many steps (None: each epoch) is due."""
        at_end = self.state.step == self.total_steps
        if every is None:
            return at_end or self.state.position == 0
        return at_end or self.state.step % every == 0

    def saved_state(self) -> checkpoint.State:
        return {
            **asdict(self.state),
            "scaler": self.precision.state(),
            "precision": self.precision.name,
            "data": self.task.fingerprint,
            "origins": self.task.origins,
            "labels": list(self.task.labels),
            "config": self.job.model_dump(mode="json"),
            "world_size": self.strategy.world_size,
        }

    def restore(self, saved: checkpoint.Checkpoint) -> None:
        """Resume from a checkpoint; UserError if it belongs to another job."""
        same_job.check(self, saved)
        self.strategy.set_state(saved.tensors)
        if self.task.table is not None:
            self.task.table.store.load(saved.folder / sparse_table.FILE)
        self.precision.set_state(saved.state["scaler"])
        known = State.__dataclass_fields__
        self.state = State(**{name: saved.state[name] for name in known if name in saved.state})
        best = self.state.best.items()  # JSON has no NaN
        self.state.best = {name: math.nan if value is None else value for name, value in best}
        self.resumed_at = self.state.step

    def check_best(self, quick: bool = False) -> bool:
        """Return whether the best step's weights can still be read; called on all ranks.

        If its checkpoint is gone or broken, a warning is logged and the best step is forgotten. An
        evaluation of the current step takes its place. `quick`: as in `checkpoint.broken`.
        """
        best = self.state.best
        if not best or best["step"] == self.state.step:
            return True
        path = checkpoint.of_step(self.folder / "checkpoints", best["step"])
        problem = self.strategy.from_first(lambda: checkpoint.broken(path, quick))
        if problem is None:
            return True
        if self.strategy.rank == 0:
            log.warning(
                f"the best checkpoint cannot be had any more: {path}: {problem}; the weights of "
                f"step {self.state.step} take its place until others are better"
            )
        is_now = self.evaluated.get("step") == self.state.step
        self.state.best = dict(self.evaluated) if is_now else {}
        return False

    def train(self) -> Summary:
        """Run the remaining steps; return the summary."""
        began = time.perf_counter()
        try:
            heartbeat.note_step(self.resumed_at, 0)
            touched_rows.choose(self.strategy, _read_gradients(self.callbacks))
            self.each(lambda callback: callback.on_start(self))
            self._steps()
            self.check_best()
            summary = self._summary(time.perf_counter() - began)
            self.each(lambda callback: callback.on_end(self, summary))
        except BaseException:
            with contextlib.suppress(UserError):  # the first error is the one to tell
                self.each(lambda callback: callback.close(self))
            raise
        self.each(lambda callback: callback.close(self))
        return summary

    def _steps(self) -> None:
        state, settings = self.state, self.job.trainer
        each = self.job.optimizer.accumulate_steps
        parts = self.strategy.world_size * each
        shard = slice(self.strategy.rank * each, (self.strategy.rank + 1) * each)
        since = np.zeros(4)  # of the steps since the last row: their number, texts, and seconds
        steps = reader.read(
            self.task,
            self.job.data.num_workers,
            (state.epoch, state.position),
            self.total_steps - state.step,
            parts,
            shard,
        )
        with contextlib.closing(steps):
            while state.step < self.total_steps:
                self.each(lambda callback: callback.before_reading(self))
                reading = time.perf_counter()
                read = next(steps)
                generator = seed_step(settings.seed, self.strategy.rank, state.step)
                if self.precision.functions is not None:
                    self.precision.functions.generator = generator
                computing = time.perf_counter()
                self.each(lambda callback: callback.after_reading(self))
                rate = self.strategy.schedule.last_lr
                step = self.strategy.step(read.arrays)
                ended = time.perf_counter()
                self.reading += computing - reading
                since += (1, len(read.indices), computing - reading, ended - reading)
                self._advance(read.epoch_steps, read.arrays, ended - reading, step)
                if self.is_due(settings.log_every) or state.step == 1 or step.bad:
                    row = self._row(step, rate, *since.tolist())
                    since[:] = 0
                    for callback in self.callbacks:
                        callback.on_log(self, row)
                    if step.bad:
                        self._keep_bad(read, row)
                heartbeat.note_step(state.step, state.step - self.resumed_at)
                self.each(lambda callback: callback.on_step(self))
                self.strategy.remember(lambda: asdict(state))

    def _keep_bad(self, read: reader.Read, row: Row) -> None:
        state = self.state
        path = self.folder / bad_steps.NAME
        bad_steps.keep_texts(path, self.strategy, self.task, read.indices, read.epoch, state.step)
        most = self.job.trainer.max_bad_steps
        # Too many in a row, or a whole run had no other.
        if state.bad_in_a_row >= most or state.bad_in_a_row == state.step == self.total_steps:
            raise bad_steps.too_many(row, state.bad_in_a_row, self.precision.remedy, path)

    def _advance(self, steps: int, arrays: list[Arrays], seconds: float, step: Step) -> None:
        self.step_texts = sum(part["n_texts"] for part in arrays)
        self.step_tokens = sum(part["n_tokens"] for part in arrays)
        self.texts += self.step_texts
        self.tokens += self.step_tokens
        self.seconds += seconds
        state = self.state
        state.step += 1
        state.position += 1
        state.skipped += step.skipped
        state.bad_steps += step.bad
        state.bad_in_a_row = state.bad_in_a_row + 1 if step.bad else 0
        if state.position == steps:
            state.epoch, state.position = state.epoch + 1, 0

    def _row(
        self, step: Step, rate: float, steps: float, texts: float, reading: float, seconds: float
    ) -> Row:
        """Return a row of metrics.jsonl. Loss (the mean over all ranks' texts) and rate are of this
        step; the other figures are of all steps since the last row."""
        return {
            "step": self.state.step,
            "epoch": self.state.epoch,
            "loss": self.strategy.share_loss(step.loss),
            "lr": rate,
            "scale": self.precision.scale,
            "ips": texts / seconds,
            "batch_cost": seconds / steps,
            "reader_cost": reading / steps,
            "reader_ratio": reading / seconds,
            "skipped": self.state.skipped,
            "bad_steps": self.state.bad_steps,
            **self.strategy.figures(),
        }

    def _summary(self, wall: float) -> Summary:
        ranks = self.strategy.gather((self.texts, self.tokens, self.seconds))
        seconds = max(max(rank[2] for rank in ranks), 1e-9)
        return {
            "dev": dict(self.state.best),
            "steps": self.state.step,
            "skipped_steps": self.state.skipped,
            "bad_steps": self.state.bad_steps,
            "resumed_at": self.resumed_at,  # speeds and wall_s are of the steps after it
            "texts_per_s": sum(rank[0] for rank in ranks) / seconds,
            "tokens_per_s": sum(rank[1] for rank in ranks) / seconds,
            "reader_ratio": self.reading / seconds,
            "wall_s": wall,
            "world_size": self.strategy.world_size,
            "device": self.strategy.device,
            "precision": self.precision.name,
            **self.strategy.summary(),
            **self.task.describe(),
            "versions": versions(),
            "config": self.job.model_dump(mode="json"),
        }


def _read_gradients(callbacks: list[Callback]) -> bool:
    return any(type(each).on_gradients is not Callback.on_gradients for each in callbacks)


def seed_step(seed: int, rank: int, step: int) -> np.random.Generator:
    """Seed Paddle's, NumPy's and Python's generators for a step; return one for its dropout.

    The numbers depend on the seed, the rank and the step only. So a resumed run draws the numbers
    of the undisturbed run on any device, and no checkpoint needs the state of a generator.
    """
    sequence = np.random.SeedSequence([seed, rank, step])
    paddle_seed, numpy_seed, python_seed = (int(n) for n in sequence.generate_state(3, np.uint32))
    paddle.seed(paddle_seed)
    np.random.seed(numpy_seed)
    random.seed(python_seed)
    return np.random.Generator(np.random.SFC64(sequence.spawn(1)[0]))


def _check_alike(chosen: list[str]) -> None:
    """Raise UserError if ranks on different machines have chosen different precisions."""
    if len(set(chosen)) > 1:
        raise UserError(
            f"precision.level: auto is {chosen[0]} on rank 0 and not on all others ("
            f"{', '.join(chosen)}); name a level that all have: O0 is float32"
        )


def _float32(job: schema.Config, task: Trainable) -> str | None:
    """Return what makes a job compute in float32 on a CPU, for `precision.choose`."""
    if job.trainer.compile:
        return "trainer.compile"
    if job.strategy.name == "parameter_server":
        return "strategy.name: parameter_server"
    return task.float32


def versions() -> dict[str, str]:
    return {
        "fleetbert": fleetbert.__version__,
        "paddlepaddle": paddle.__version__,
        "python": platform.python_version(),
    }
