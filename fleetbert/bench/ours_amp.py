# ruff: noqa: ARG002  a callback's methods have the arguments of the interface, used or not
"""One cell of `bench amp`: the real training loop at one precision, batch size and length.

`python -m fleetbert.bench.ours_amp job.json`. A process for each, so that its peak is its own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import paddle

from fleetbert import config as schema
from fleetbert.bench import worker
from fleetbert.bench.ours_train import Pacer
from fleetbert.errors import UserError
from fleetbert.train.callbacks import build
from fleetbert.train.loop import Run, versions
from fleetbert.train.strategies import connect
from fleetbert.train.texts import open_task


class Curve(Pacer):
    """A pacer that also keeps every step's loss, and tells at the end the device's memory."""

    def __init__(self, segments: worker.Segments):
        super().__init__(segments)
        self.losses: list[float] = []

    def on_log(self, run: Any, row: dict[str, Any]) -> None:
        self.losses.append(row["loss"])

    def on_step(self, run: Any) -> None:
        super().on_step(run)
        if self.segments.left == 0:
            assert self.segments.report is not None
            on_gpu = run.strategy.device == "gpu"
            taken = paddle.device.cuda.max_memory_allocated() / 1e6 if on_gpu else None
            self.segments.report.update(
                losses=self.losses, skipped=run.state.skipped, device_mb=taken
            )


def main() -> None:
    channel = worker.Channel()
    wanted = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        job = schema.load(wanted["config"], wanted["overrides"])
        run = Run(job, connect(job), open_task(job))
        run.callbacks = build(run)
        segments = worker.Segments(channel)
        run.callbacks.insert(0, Curve(segments))
        run.folder.mkdir()
        channel.send(versions=versions(), device_name=_device_name(run.strategy.device))
        run.train()
    except UserError as error:
        channel.send(error=str(error))
    except worker.Stop:
        pass


def _device_name(device: str) -> str:
    return paddle.device.cuda.get_device_name() if device == "gpu" else device


if __name__ == "__main__":
    main()
