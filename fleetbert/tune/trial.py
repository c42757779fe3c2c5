"""One trial: a training run that reports its evaluations and may be pruned."""

from __future__ import annotations

import math

import optuna

from fleetbert import config
from fleetbert.core import files
from fleetbert.core.errors import UserError
from fleetbert.tasks import Metrics
from fleetbert.training.job import train_with
from fleetbert.training.loop import Callback, Run, Summary
from fleetbert.training.strategies import connect


class Reports(Callback):
    """Tells Optuna each evaluation, numbered from 1, so that trials with steps of other sizes are
    compared; ends the trial where Optuna prunes it."""

    def __init__(self, trial: optuna.Trial):
        self.trial = trial

    def on_evaluation(self, run: Run, metrics: Metrics) -> None:
        every, state = run.job.trainer.eval_every, run.state
        number = state.epoch if every is None else -(-state.step // every)
        self.trial.report(_value(run, metrics), number)
        if state.step < run.total_steps and self.trial.should_prune():
            raise optuna.TrialPruned


def _value(run: Run, metrics: Metrics) -> float:
    """Higher is better."""
    criterion = run.task.criterion(metrics)
    value = float(metrics[criterion.metric])
    return -value if criterion.lower_is_better else value


def run(job: config.Config, trial: optuna.Trial) -> float:
    """Train as `job` says, from a former run's checkpoint if there is one; return the metric of the
    best step, where higher is better. Neither model nor bundle is written.

    UserError where the run fails or gives no number, TrialPruned, and Stopped after SIGTERM.
    """
    profiler = job.callbacks.profiler.model_copy(update={"enabled": False})
    quiet = {"progress": False, "visualdl": False, "report": False, "profiler": profiler}
    keys = {"callbacks": job.callbacks.model_copy(update=quiet)}
    values: list[float] = []

    def write(run: Run, summary: Summary) -> None:
        best = run.state.best
        if best:
            values.append(_value(run, best))
            trial.set_user_attr("metric", best["metric"])
            trial.set_user_attr("value", float(best[best["metric"]]))
        files.write_json(run.folder / "summary.json", summary)

    train_with(
        connect(job),
        job.model_copy(update=keys),
        write_results=write,
        last=[Reports(trial)],
        save_last=False,  # nobody reads its weights
    )
    if not values or math.isnan(values[0]):
        raise UserError("the dev texts gave no number to compare")
    return values[0]
