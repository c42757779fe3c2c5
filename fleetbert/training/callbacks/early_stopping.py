"""Stops a run after `trainer.patience` evaluations in a row without improvement (Prechelt 1998).

Learning rates stay as they are. Checkpoints keep the count, so a run that stopped stays stopped
when it is started again.
"""

from __future__ import annotations

import logging
import math

from fleetbert.core.errors import UserError
from fleetbert.tasks import Metrics
from fleetbert.training.loop import Callback, Run

log = logging.getLogger(__name__)


class EarlyStopping(Callback):
    problem: UserError | None = None

    def on_start(self, run: Run) -> None:
        if not run.task.dev_batches():
            raise UserError("trainer.patience: there are no texts to evaluate on; give data.dev")
        if self._is_over(run):
            self._end(run, "had stopped")

    def on_evaluation(self, run: Run, metrics: Metrics) -> None:
        state = run.state
        name = run.job.trainer.patience_metric or run.task.criterion(metrics).metric
        value = metrics.get(name)
        if not isinstance(value, (int, float)):
            known = [n for n, v in metrics.items() if isinstance(v, (int, float))]
            self.problem = UserError(
                f"trainer.patience_metric: {name} is no figure of an evaluation; there are "
                f"{', '.join(known)}"
            )
            return
        rise = -value if name == "loss" else value
        if not math.isnan(rise) and (state.watched is None or rise > state.watched):
            state.watched, state.in_vain = rise, 0
            return
        state.in_vain += 1
        if self._is_over(run) and state.step < run.total_steps:
            self._end(run, f"{name} was not better in {state.in_vain} evaluations: stops")

    def on_step(self, run: Run) -> None:  # after the step was saved
        if self.problem is not None:
            raise self.problem

    def _is_over(self, run: Run) -> bool:
        patience = run.job.trainer.patience
        return patience is not None and run.state.in_vain >= patience

    def _end(self, run: Run, what: str) -> None:
        if run.strategy.rank == 0:
            log.info(
                f"{what} at step {run.state.step} of {run.total_steps}; for more set "
                "trainer.patience higher"
            )
        run.total_steps = run.state.step
