"""How many operators of a step AMP runs in half precision: in the log, summary.json and
report.html."""

from __future__ import annotations

import contextlib
import logging

from fleetbert.compat import training
from fleetbert.training.loop import Callback, Run, Summary

log = logging.getLogger(__name__)

CAST = "transfer_dtype"  # what AMP adds, in float32 and in half


class HalfOperators(Callback):
    """Counts the operators of a run's first step, forward pass and update. Paddle counts none of
    the backward pass, whose operators run as those of the forward pass do."""

    def on_start(self, run: Run) -> None:
        self.counts: dict[str, tuple[int, int]] = {}
        self.counting = contextlib.ExitStack()

    def after_reading(self, run: Run) -> None:
        if run.state.step == run.resumed_at:
            self.counting.enter_context(training.counting_operators(self.counts))

    def on_step(self, run: Run) -> None:
        self.counting.close()

    def close(self, run: Run) -> None:
        self.counting.close()

    def on_end(self, run: Run, summary: Summary) -> None:
        counts = {name: numbers for name, numbers in self.counts.items() if name != CAST}
        half, whole = map(sum, zip(*counts.values())) if counts else (0, 0)
        summary["half_operators"] = {"half": half, "all": whole}
        if run.strategy.rank == 0:
            log.info(f"{half} of a step's {whole} operators ran in {run.precision.name}")
