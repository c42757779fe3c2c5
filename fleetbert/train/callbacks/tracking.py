"""The figures of metrics.jsonl for the trackers that a job names."""

from __future__ import annotations

import json
import math

from fleetbert import files, trackers
from fleetbert.train.loop import Callback, Metrics, Row, Run


class Tracking(Callback):
    """targets: what the job says of each kind of tracker: a project's name, or true."""

    def __init__(self, targets: dict[str, str | bool]):
        self.targets = targets
        self.open: list[trackers.Tracker] = []

    def on_start(self, run: Run) -> None:
        config = _flat(json.loads(run.job.model_dump_json()))
        for kind, target in self.targets.items():
            with files.writing(run.folder):
                tracker = trackers.KINDS[kind](run.folder, str(target), config, run.resumed_at)
            self.open.append(tracker)

    def on_log(self, run: Run, row: Row) -> None:
        self._write("train", run, row)

    def on_evaluation(self, run: Run, metrics: Metrics) -> None:
        self._write("dev", run, metrics)

    def close(self, run: Run) -> None:
        while self.open:
            self.open.pop().close()

    def _write(self, group: str, run: Run, metrics: Metrics) -> None:
        figures = {
            f"{group}/{name}": float(value)
            for name, value in metrics.items()
            if isinstance(value, (int, float)) and math.isfinite(value) and name != "step"
        }
        for tracker in self.open:
            tracker.log(run.state.step, figures)


def _flat(values: dict[str, object], prefix: str = "") -> dict[str, object]:
    """{"optimizer.learning_rate": 5e-5, ...}"""
    found: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found.update(_flat(value, f"{prefix}{name}."))
        else:
            found[prefix + name] = value
    return found
