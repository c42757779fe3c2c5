"""Saves the run: every so many steps, at a new best, and when SIGTERM asks it to stop."""

from __future__ import annotations

import signal
from typing import Any

from fleetbert.errors import Stopped
from fleetbert.train import checkpoint
from fleetbert.train.bad_steps import check_weights
from fleetbert.train.callbacks import Callback


class Checkpoints(Callback):
    def on_start(self, run: Any) -> None:
        self.asked = False
        self.former = signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, signum: int, frame: Any) -> None:
        self.asked = True

    def on_step(self, run: Any) -> None:
        # Any rank may have been asked; all have to stop after the same step.
        stop = run.strategy.any(self.asked)
        new_best = run.state.best.get("step") == run.state.step
        if stop or new_best or run.is_due(run.job.trainer.checkpoint_every):
            self.save(run)
        if stop:
            raise Stopped(
                f"SIGTERM: saved step {run.state.step} of {run.total_steps}; "
                "the same command goes on from there"
            )

    def save(self, run: Any) -> None:
        def write() -> None:
            folder, tensors = run.folder / "checkpoints", run.strategy.state()
            check_weights(run.state.step, tensors)
            rows = getattr(run.task, "rows", None)
            checkpoint.save(folder, run.saved_state(), tensors, rows and rows.save)
            checkpoint.prune(folder, run.job.trainer.keep_checkpoints, run.state.best.get("step"))

        run.strategy.settle(saving=True)
        run.strategy.on_first(write)

    def close(self, run: Any) -> None:
        if hasattr(self, "former"):
            signal.signal(signal.SIGTERM, self.former)
