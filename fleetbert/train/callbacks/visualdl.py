"""The figures of metrics.jsonl for VisualDL: `visualdl --logdir OUTPUT_DIR/visualdl`."""

from __future__ import annotations

import math
from typing import Any

from fleetbert import files
from fleetbert.train.callbacks import Callback


class VisualDL(Callback):
    def on_start(self, run: Any) -> None:
        from visualdl import LogWriter  # slow to import, and only here

        self.folder = run.folder / "visualdl"
        with files.writing(self.folder):
            self.writer = LogWriter(logdir=str(self.folder))

    def on_log(self, run: Any, row: dict[str, Any]) -> None:
        self._write("train", run.state.step, row)

    def on_evaluation(self, run: Any, figures: dict[str, Any]) -> None:
        self._write("dev", run.state.step, figures)

    def close(self, run: Any) -> None:
        if hasattr(self, "writer"):
            with files.writing(self.folder):
                self.writer.close()

    def _write(self, group: str, step: int, figures: dict[str, Any]) -> None:
        for name, value in figures.items():
            if isinstance(value, (int, float)) and math.isfinite(value) and name != "step":
                self.writer.add_scalar(tag=f"{group}/{name}", step=step, value=value)
