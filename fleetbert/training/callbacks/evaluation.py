"""Evaluates the network on the dev texts, which ranks share, and notes the best step."""

from __future__ import annotations

import math

from fleetbert.training.loop import Callback, Run


class Evaluation(Callback):
    def on_start(self, run: Run) -> None:
        # A trainer that rejoins is alone here; the others have seen to it.
        if not run.strategy.rejoins and not run.check_best():
            self.evaluate(run)

    def on_step(self, run: Run) -> None:
        if run.is_due(run.job.trainer.eval_every):
            self.evaluate(run)

    def evaluate(self, run: Run) -> None:
        task, strategy = run.task, run.strategy
        batches = task.dev_batches()
        if not batches:
            return
        strategy.synchronize()
        parts = [
            strategy.predict(task.dev_arrays(part))
            for part in batches[strategy.rank :: strategy.world_size]
        ]
        metrics = task.evaluate([part for rank in strategy.gather(parts) for part in rank])
        criterion = task.criterion(metrics)
        run.evaluated = {**metrics, "step": run.state.step, "metric": criterion.metric}
        run.check_best(quick=True)
        if math.isfinite(metrics[criterion.metric]) and criterion.is_better(
            metrics, run.state.best
        ):
            run.state.best = dict(run.evaluated)
        run.each(lambda callback: callback.on_evaluation(run, metrics))
