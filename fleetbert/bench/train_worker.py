# ruff: noqa: ARG002  a callback's methods have the arguments of the interface, used or not
"""A training job, measured: `python -m fleetbert.bench.train_worker job.json`.

The real training loop, in segments. It says hello before it meets other ranks and starts when told
to; then it says what it trains, and does steps when told to (`worker.Segments`).
"""

from __future__ import annotations

import time

import paddle

from fleetbert import config as schema
from fleetbert.bench import measure, worker
from fleetbert.bench.worker import Json
from fleetbert.core import task_names
from fleetbert.core.errors import UserError
from fleetbert.training.callbacks import Callback
from fleetbert.training.job import train_with
from fleetbert.training.loop import Run, versions
from fleetbert.training.strategies import connect
from fleetbert.training.texts import TextTask


class Pacer(Callback):
    """Goes on only while a segment lasts, and times its steps: reading, computing, logging."""

    def __init__(self, channel: worker.Channel):
        self.segments = worker.Segments(channel)
        self.losses: list[float] = []

    def facts(self, run: Run) -> Json:
        """What is trained, before the first step."""
        assert isinstance(run.task, TextTask)
        lengths, dev = run.task.train.encodings.lengths, run.task.dev
        device = run.strategy.device
        return {
            "total_steps": run.total_steps,
            "versions": versions(),
            "device_name": str(paddle.device.cuda.get_device_name() if device == "gpu" else device),
            "texts": len(lengths),
            "dev_texts": 0 if dev is None else len(dev.encodings.lengths),
            "mean_tokens": float(lengths.mean()),
        }

    def on_start(self, run: Run) -> None:
        self.segments.channel.send(**self.facts(run))

    def before_reading(self, run: Run) -> None:
        _finish(run)
        self.segments.before_step()
        if self.report["steps"] == 0:
            self.report["reading"] = 0.0
        self._began = time.perf_counter()

    def after_reading(self, run: Run) -> None:
        if not self.segments.untimed:
            self.report["reading"] += time.perf_counter() - self._began

    def on_log(self, run: Run, row: Json) -> None:
        self.losses.append(row["loss"])

    def on_step(self, run: Run) -> None:
        _finish(run)
        self.segments.after_step(run.step_texts, run.step_tokens)
        if self.segments.left == 0:
            gpu = run.strategy.device == "gpu"
            self.report.update(
                losses=self.losses,
                skipped=run.state.skipped,
                device_mb=paddle.device.cuda.max_memory_allocated() / 1e6 if gpu else None,
            )

    def on_evaluation(self, run: Run, metrics: Json) -> None:
        if "accuracy" in metrics:
            self.segments.dev.append(metrics["accuracy"])

    def on_end(self, run: Run, summary: Json) -> None:
        self.segments.send_report()
        raise worker.Stop  # no results are written

    @property
    def report(self) -> Json:
        """Of the segment that is going on."""
        assert self.segments.report is not None
        return self.segments.report


def _finish(run: Run) -> None:
    if run.strategy.device == "gpu":
        paddle.device.cuda.synchronize()


def main(pacer: type[Pacer] = Pacer) -> None:
    """pacer: which one paces; others measure more."""

    def train(channel: worker.Channel, message: Json) -> None:
        job = schema.load_as(schema.Config, message["config"], message["overrides"])
        if not task_names.SHAPES[job.task.name].of_texts:
            raise UserError(f"bench measures trainings of texts; task.name is {job.task.name}")
        channel.send(versions=versions())
        channel.receive()
        train_with(connect(job), job, first=(pacer(channel),))

    measure.work(train)


if __name__ == "__main__":
    main()
