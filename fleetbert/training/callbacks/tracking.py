"""The figures of metrics.jsonl for the trackers that a job names."""

from __future__ import annotations

import math
from contextlib import ExitStack
from pathlib import Path

from fleetbert.config import flat
from fleetbert.core import files
from fleetbert.training import trackers
from fleetbert.training.loop import Callback, Metrics, Row, Run


class Tracking(Callback):
    """targets: what the job says of each kind of tracker: a project's name, or true."""

    def __init__(self, targets: dict[str, str | bool]):
        self.targets = targets
        self.open: dict[str, trackers.Tracker] = {}

    def on_start(self, run: Run) -> None:
        config = flat(run.job.model_dump(mode="json"))
        for kind, target in self.targets.items():
            with files.writing(run.folder / kind):
                tracker = trackers.KINDS[kind](run.folder, str(target), config, run.resumed_at)
            self.open[kind] = tracker

    def on_log(self, run: Run, row: Row) -> None:
        self._write("train", run, row)

    def on_evaluation(self, run: Run, metrics: Metrics) -> None:
        self._write("dev", run, metrics)

    def close(self, run: Run) -> None:
        with ExitStack() as closing:  # one that fails does not keep the others open
            while self.open:
                kind, tracker = self.open.popitem()
                closing.callback(_close, run.folder / kind, tracker)

    def _write(self, group: str, run: Run, metrics: Metrics) -> None:
        figures = {
            f"{group}/{name}": float(value)
            for name, value in metrics.items()
            if isinstance(value, (int, float)) and math.isfinite(value) and name != "step"
        }
        for tracker in self.open.values():
            tracker.log(run.state.step, figures)


def _close(folder: Path, tracker: trackers.Tracker) -> None:
    with files.writing(folder):
        tracker.close()
