"""metrics.jsonl: one JSON object a row, of training (`loss`) or of evaluation (`dev.…`).

A figure that is not finite is null.
"""

from __future__ import annotations

import json
from pathlib import Path

from fleetbert.core import files, strict_json
from fleetbert.training import bad_steps
from fleetbert.training.loop import Callback, Row, Run


class MetricsFile(Callback):
    def on_start(self, run: Run) -> None:
        self.path = run.folder / "metrics.jsonl"
        cut_back(self.path, run.state.step)
        bad = run.folder / bad_steps.NAME
        if bad.exists():
            cut_back(bad, run.state.step)

    def on_log(self, run: Run, row: Row) -> None:
        self._append(row)

    def on_evaluation(self, run: Run, metrics: Row) -> None:
        numbers = {f"dev.{k}": v for k, v in metrics.items() if isinstance(v, (int, float))}
        self._append({"step": run.state.step, **numbers})

    def _append(self, row: Row) -> None:
        with files.writing(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(strict_json.dumps(row) + "\n")


def cut_back(path: Path, step: int) -> None:
    """Keep the rows up to a step. A killed run may have logged steps after its checkpoint: they
    are done again."""
    rows = []
    if path.is_file() and step:
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
            try:
                row = json.loads(line)
            except ValueError:  # the row that the kill cut short
                break
            if row["step"] > step:
                break
            rows.append(line + "\n")
    with files.writing(path), files.replacing(path) as stream:
        stream.write("".join(rows).encode("utf-8"))
