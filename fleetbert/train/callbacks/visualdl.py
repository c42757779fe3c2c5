"""The figures of metrics.jsonl for VisualDL: `visualdl --logdir OUTPUT_DIR/visualdl`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fleetbert import files
from fleetbert.train.loop import Callback, Metrics, Row, Run

if TYPE_CHECKING:
    from visualdl import LogWriter


class VisualDL(Callback):
    writer: LogWriter | None = None

    def on_start(self, run: Run) -> None:
        from visualdl import LogWriter  # takes a second to import, and is needed only here

        self.folder = run.folder / "visualdl"
        with files.writing(self.folder):
            self.writer = LogWriter(logdir=str(self.folder))

    def on_log(self, run: Run, row: Row) -> None:
        self._write("train", run.state.step, row)

    def on_evaluation(self, run: Run, metrics: Metrics) -> None:
        self._write("dev", run.state.step, metrics)

    def close(self, run: Run) -> None:
        if self.writer is not None:
            with files.writing(self.folder):
                self.writer.close()

    def _write(self, group: str, step: int, metrics: Metrics) -> None:
        assert self.writer is not None
        for name, value in metrics.items():
            if isinstance(value, (int, float)) and math.isfinite(value) and name != "step":
                self.writer.add_scalar(tag=f"{group}/{name}", step=step, value=value)
