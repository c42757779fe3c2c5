"""Saves the run: every so many steps, at a new best, and when a signal asks it to stop."""

from __future__ import annotations

import signal

from fleetbert.compat import environment
from fleetbert.core import stopping
from fleetbert.training import checkpoint
from fleetbert.training.bad_steps import check_weights
from fleetbert.training.loop import Callback, Run


class Checkpoints(Callback):
    """last: whether the last step is saved although no signal stops the run at it."""

    def __init__(self, last: bool = True):
        self.last = last

    def on_start(self, run: Run) -> None:
        stopping.steps_run(True)

    def on_step(self, run: Run) -> None:
        # The signal may reach any rank; all have to stop after the same step.
        received = stopping.received()
        stop = run.strategy.any(received is not None)
        new_best = run.state.best.get("step") == run.state.step
        is_due = new_best or run.is_due(run.job.trainer.checkpoint_every)
        is_read = self.last or run.state.step < run.total_steps
        if stop or (is_due and is_read):
            self.save(run)
        if stop:
            raise stopping.stopped(
                received or signal.SIGTERM,
                f"saved step {run.state.step} of {run.total_steps}",
            )

    def save(self, run: Run) -> None:
        def write() -> None:
            environment.give_back_memory()
            folder, tensors = run.folder / "checkpoints", run.strategy.state()
            check_weights(run.state.step, tensors)
            table = run.task.table
            checkpoint.save(folder, run.saved_state(), tensors, table.save if table else None)
            checkpoint.prune(folder, run.job.trainer.keep_checkpoints, run.state.best.get("step"))

        run.strategy.synchronize(saving=True)
        run.strategy.on_first(write)

    def close(self, run: Run) -> None:
        stopping.steps_run(False)
