"""The training loop: texts in, steps, figures out. All else hangs on it as callbacks."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import platform
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import paddle

import fleetbert
from fleetbert import config as schema
from fleetbert.errors import UserError
from fleetbert.models import cpu
from fleetbert.train import (
    bad_steps,
    callbacks,
    checkpoint,
    compiled,
    optimizer,
    precision,
    random,
    reader,
)
from fleetbert.train.task import Task


@dataclass
class State:
    """Where a run stands; all of it goes into every checkpoint."""

    step: int = 0  # optimizer steps done, skipped ones too
    epoch: int = 0
    position: int = 0  # steps done in this epoch
    skipped: int = 0  # steps that the GradScaler skipped
    bad_steps: int = 0  # see bad_steps.py
    bad_in_a_row: int = 0
    best: dict[str, Any] = field(default_factory=dict)  # figures of the best evaluation


class Run:
    """A training job in motion: what callbacks see."""

    def __init__(self, job: schema.Config, connected: Any, task: Task):
        self.job, self.strategy = job, connected
        self.task: Any = task  # `train.job`, which knows that it is of texts, asks for more
        self.folder = Path(job.output_dir)
        self.state = State()
        self.total_steps = self._count_steps()
        self.precision = precision.choose(job.precision, connected.device)
        self.random = cpu.Random()
        if job.trainer.compile:  # needs Paddle's own layers: NumPy's cannot be traced
            compiled.compile_training(task.network, connected.device)
        elif connected.device == "cpu":
            cpu.accelerate(task.network, self.random)
        adamw, schedule = optimizer.build(job.optimizer, task.network, self.total_steps)
        connected.prepare(task, adamw, schedule, self.precision)
        self.step_texts = self.step_tokens = 0  # of the last step, on this rank
        self.texts = self.tokens = 0  # of all steps of this process
        self.resumed_at = 0  # the step that this process went on from
        self.reading = 0.0  # seconds spent collecting them
        self.seconds = 0.0  # that they took, without evaluation and checkpoints
        self.callbacks = callbacks.build(self)

    def _count_steps(self) -> int:
        settings = self.job.trainer
        steps = 0
        for epoch in range(settings.epochs):
            steps += len(self.task.plan(epoch))
            if settings.max_steps and steps >= settings.max_steps:
                return settings.max_steps
        return steps

    def each(self, hook: str, *arguments: Any) -> None:
        """Call a hook of all callbacks."""
        for callback in self.callbacks:
            getattr(callback, hook)(self, *arguments)

    def is_due(self, every: int | None) -> bool:
        """Whether it is time for something done every so many steps (None: each epoch)."""
        at_end = self.state.step == self.total_steps
        if every is None:
            return at_end or self.state.position == 0
        return at_end or self.state.step % every == 0

    def saved_state(self) -> dict[str, Any]:
        return {
            **asdict(self.state),
            "scaler": self.precision.state(),
            "data": self.task.fingerprint,
            "config": json.loads(self.job.model_dump_json()),
            "world_size": self.strategy.world_size,
        }

    def restore(self, saved: checkpoint.Checkpoint) -> None:
        """Go on from a checkpoint; UserError when it belongs to another job."""
        _check_same_job(self, saved)
        self.strategy.set_state(saved.tensors)
        if getattr(self.task, "rows", None) is not None:
            self.task.rows.load(saved.folder)
        self.precision.set_state(saved.state["scaler"])
        known = State.__dataclass_fields__
        self.state = State(**{name: saved.state[name] for name in known if name in saved.state})
        self.resumed_at = self.state.step

    def train(self) -> dict[str, Any]:
        """Run the steps that are left; returns the summary."""
        began = time.perf_counter()
        try:
            self.each("on_start")
            self._steps()
            summary = self._summary(time.perf_counter() - began)
            self.each("on_end", summary)
        except BaseException:
            with contextlib.suppress(UserError):  # the first error is the one to tell
                self.each("close")
            raise
        self.each("close")
        return summary

    def _steps(self) -> None:
        state, settings = self.state, self.job.trainer
        parts = self.strategy.world_size * self.job.optimizer.accumulate_steps
        share = parts // self.strategy.world_size
        mine = slice(self.strategy.rank * share, (self.strategy.rank + 1) * share)
        since = _Since()
        steps = reader.read(
            self.task,
            self.job.data.num_workers,
            (state.epoch, state.position),
            self.total_steps - state.step,
            parts,
            mine,
        )
        with contextlib.closing(steps):
            while state.step < self.total_steps:
                self.each("before_reading")
                reading = time.perf_counter()
                read = next(steps)
                self.random.generator = random.start_step(
                    settings.seed, self.strategy.rank, state.step
                )
                computing = time.perf_counter()
                self.each("after_reading")
                rate = self.strategy.schedule.last_lr
                step = self.strategy.step(read.arrays)
                ended = time.perf_counter()
                self.reading += computing - reading
                since.add(computing - reading, ended - reading, len(read.indices))
                self._advance(read.epoch_steps, read.arrays, ended - reading, step)
                if self.is_due(settings.log_every) or state.step == 1 or step.bad:
                    row = self._row(step, rate, since)
                    self.each("on_log", row)
                    since = _Since()
                    if step.bad:
                        bad_steps.keep_texts(self, read.indices, read.epoch)
                        bad_steps.stop_if_many(self, row)
                self.each("on_step")

    def _advance(self, steps: int, arrays: Any, seconds: float, step: Any) -> None:
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

    def _row(self, step: Any, rate: float, since: _Since) -> dict[str, Any]:
        """A row of metrics.jsonl. Loss and rate are this step's, the loss the
        mean over the texts of all ranks."""
        return {
            "step": self.state.step,
            "epoch": self.state.epoch,
            "loss": self.strategy.share_loss(step.loss),
            "lr": rate,
            "scale": self.precision.scale,
            "ips": since.texts / since.seconds,
            "batch_cost": since.seconds / since.steps,
            "reader_cost": since.reading / since.steps,
            "reader_ratio": since.reading / since.seconds,
            "skipped": self.state.skipped,
            "bad_steps": self.state.bad_steps,
            **self.strategy.figures(),
        }

    def _summary(self, wall: float) -> dict[str, Any]:
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
            **self.strategy.summary(),
            **self.task.describe(),
            "versions": versions(),
            "config": json.loads(self.job.model_dump_json()),
        }


class _Since:
    """Time and texts since the last row."""

    def __init__(self) -> None:
        self.reading = self.seconds = 0.0
        self.steps = self.texts = 0

    def add(self, reading: float, seconds: float, texts: int) -> None:
        self.reading += reading
        self.seconds += seconds
        self.steps += 1
        self.texts += texts


def versions() -> dict[str, str]:
    return {
        "fleetbert": fleetbert.__version__,
        "paddlepaddle": paddle.__version__,
        "paddlenlp": importlib.metadata.version("paddlenlp"),
        "python": platform.python_version(),
    }


# What must be the same in a resumed run for its steps to be the ones that are left.
SAME = (
    "task",
    "data",
    "model",
    "optimizer",
    "wide_deep",
    "precision.level",
    "precision.dtype",
    "trainer.seed",
    "method",
    "distill",
    "skip",
    "prune",
)
FREE = ("data.cache", "data.num_workers")  # within these


def _check_same_job(run: Run, saved: checkpoint.Checkpoint) -> None:
    before, now = saved.state["config"], json.loads(run.job.model_dump_json())
    before["optimizer"].setdefault("name", "adamw")  # checkpoints from before there was a choice
    before.setdefault("wide_deep", now.get("wide_deep"))
    for path in FREE:
        section, name = path.split(".")
        before[section].pop(name, None)
        now[section].pop(name)
    for path in SAME:
        old, new = _at(before, path), _at(now, path)
        if old != new:
            key = path
            if isinstance(old, dict) and isinstance(new, dict):
                part = next(n for n in {**old, **new} if old.get(n) != new.get(n))
                key, old, new = f"{path}.{part}", old.get(part), new.get(part)
            raise UserError(
                f"checkpoint {saved.folder}: was trained with {key}: {schema.yaml_word(old)}, this "
                f"job has {schema.yaml_word(new)}; set it back, or start anew with "
                "trainer.resume=none or another output_dir"
            )
    if saved.state["data"] != run.task.fingerprint:
        raise UserError(
            f"checkpoint {saved.folder}: the training texts have changed since; start anew with "
            "trainer.resume=none or another output_dir"
        )


def _at(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = config.get(name)  # some sections are of some jobs only
    return config
