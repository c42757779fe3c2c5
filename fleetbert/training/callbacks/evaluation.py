"""Evaluates the network on the dev texts, which ranks share, and notes the best step."""

from __future__ import annotations

import math

from fleetbert.core import stopping
from fleetbert.tasks import Part
from fleetbert.training.loop import Callback, Run


class Evaluation(Callback):
    def on_start(self, run: Run) -> None:
        # A trainer that rejoins is alone here; the others have seen to it.
        if not run.strategy.rejoins and (not run.check_best() or run.state.evaluation_due):
            self.evaluate(run)

    def on_step(self, run: Run) -> None:
        if run.is_due(run.job.trainer.eval_every):
            self.evaluate(run)

    def evaluate(self, run: Run) -> None:
        """Evaluate, unless a signal asks the run to stop: it then does so when it is resumed."""
        task, strategy = run.task, run.strategy
        batches = task.dev_batches()
        if not batches:
            return
        strategy.synchronize()
        shares = [batches[rank :: strategy.world_size] for rank in range(strategy.world_size)]
        parts: list[Part] = []
        stopped = False
        for number in range(len(shares[0])):  # the first rank has the most
            if strategy.any_asked_to_stop(stopping.received() is not None):
                stopped = True
                break
            batch = shares[strategy.rank][number : number + 1]
            parts += [strategy.predict(task.dev_arrays(part)) for part in batch]
        gathered = strategy.gather(None if stopped else parts)
        run.state.evaluation_due = any(parts is None for parts in gathered)
        if run.state.evaluation_due:
            return
        metrics = task.evaluate([part for parts in gathered for part in parts or ()])
        criterion = task.criterion(metrics)
        run.evaluated = {**metrics, "step": run.state.step, "metric": criterion.metric}
        run.check_best(quick=True)
        if math.isfinite(metrics[criterion.metric]) and criterion.is_better(
            metrics, run.state.best
        ):
            run.state.best = dict(run.evaluated)
        run.each(lambda callback: callback.on_evaluation(run, metrics))
