"""Judges the network on the dev texts, shared out over the ranks, and notes the best step."""

from __future__ import annotations

import math
from typing import Any

from fleetbert.train.callbacks import Callback


class Evaluation(Callback):
    def on_step(self, run: Any) -> None:
        if run.is_due(run.job.trainer.eval_every):
            self.evaluate(run)

    def evaluate(self, run: Any) -> None:
        task, strategy = run.task, run.strategy
        batches = task.dev_batches()
        if not batches:
            return
        strategy.settle()
        mine = [
            strategy.predict(task.dev_arrays(part))
            for part in batches[strategy.rank :: strategy.world_size]
        ]
        answers = [answer for rank in strategy.gather(mine) for answer in rank]
        figures = task.judge(answers)
        metric = best_metric(run.job, figures)
        value, former = figures[metric], run.state.best
        better = (
            value < former[metric]
            if former and metric == "loss"
            else (not former or value > former[metric])
        )
        if better and math.isfinite(value):
            run.state.best = {**figures, "step": run.state.step, "metric": metric}
        run.each("on_evaluation", figures)


def best_metric(job: Any, figures: Any) -> str:
    """`trainer.best_metric`, but AUC where there is one, and the loss where the task has no such
    figure or is mlm."""
    wanted = "auc" if "auc" in figures else job.trainer.best_metric
    return "loss" if job.task.name == "mlm" or wanted not in figures else wanted
