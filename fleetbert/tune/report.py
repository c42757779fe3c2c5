"""The report of a search for settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Sequence

import matplotlib
import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState

from fleetbert import config
from fleetbert.compat import environment
from fleetbert.core.quantities import number
from fleetbert.reports import figures, page
from fleetbert.reports.figures import DEV, INK, STYLE, TRAIN, Drawing
from fleetbert.reports.page import Figure, Section, Table, Tile
from fleetbert.tasks import FIGURES

FEWEST = 4  # trials from which an importance is estimated
BEST = "orange: the best trial"


def write_report(path: Path, study: optuna.Study, job: config.Config) -> None:
    trials = [trial for trial in study.get_trials() if trial.state.is_finished()]
    trials = [
        trial for trial in trials if trial.intermediate_values or "failed" in trial.user_attrs
    ]
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    best = study.best_trial
    metric, names = best.user_attrs["metric"], list(best.params)
    shown = FIGURES.get(metric, metric)
    with matplotlib.rc_context(STYLE):
        drawn = [Figure("Evaluations", _curves(trials, best, metric), BEST)]
        drawn += [Figure(name, _values(done, best, name, metric), BEST) for name in names]
    tiles = [Tile(f"Best {shown}", f"{best.user_attrs['value']:.4f}", f"trial {best.number + 1}")]
    tiles += [Tile(name, _shown(best.params[name])) for name in names]
    pruned = sum(trial.state == TrialState.PRUNED for trial in trials)
    tiles.append(Tile("Trials", number(len(trials)), f"{pruned} pruned"))
    page.write(
        path,
        title=path.parent.resolve().name,
        kind="tuning",
        note=f"{job.task.name} · {shown} on {job.data.dev}",
        sections=[
            Section("", tiles),
            Section("Over the trials", drawn),
            Section("Importance", _importance(study, done)),
            Section("Trials", [_table(trials, names, shown)]),
            page.how_it_was_made(job.model_dump(mode="json"), "Machine", environment.machine(1)),
        ],
    )


def _score(value: float, metric: str) -> float:
    """As the metric is written; Optuna is told the negative of a loss."""
    return -value if metric == "loss" else 100 * value


def _name(axes: Any, metric: str) -> None:
    if metric == "loss":
        axes.set_ylabel("loss")
    else:
        figures.name_accuracy(axes, metric)


def _curves(trials: Sequence[FrozenTrial], best: FrozenTrial, metric: str) -> Drawing:
    drawing, axes = figures.axes_of()
    for trial in trials:
        steps = sorted(trial.intermediate_values)
        values = [_score(trial.intermediate_values[step], metric) for step in steps]
        is_best = trial.number == best.number
        colour = DEV if is_best else INK
        axes.plot(steps, values, "o-", color=colour, markersize=3, alpha=1 if is_best else 0.3)
    axes.set_xlabel("evaluation")
    axes.locator_params(axis="x", integer=True)
    _name(axes, metric)
    return drawing


def _values(done: Sequence[FrozenTrial], best: FrozenTrial, name: str, metric: str) -> Drawing:
    drawing, axes = figures.axes_of()
    is_log = getattr(best.distributions[name], "log", False)
    is_choice = isinstance(best.distributions[name], optuna.distributions.CategoricalDistribution)
    is_integer = isinstance(best.distributions[name], optuna.distributions.IntDistribution)
    for trial in done:
        x = _shown(trial.params[name]) if is_choice else trial.params[name]
        y = _score(trial.value or 0.0, metric)
        axes.plot([x], [y], "o", color=DEV if trial.number == best.number else TRAIN)
    if is_log:
        axes.set_xscale("log")
    elif is_integer:
        axes.locator_params(axis="x", integer=True)
    axes.set_xlabel(name)
    _name(axes, metric)
    return drawing


def _importance(study: optuna.Study, done: Sequence[FrozenTrial]) -> list[page.Part]:
    """How much of the difference between good trials and others a setting explains."""
    if len(done) < FEWEST or len({trial.value for trial in done}) < 2:
        return []
    shares = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
    rows = [(name, f"{100 * share:.0f} %") for name, share in shares.items()]
    note = "PED-ANOVA (Watanabe et al. 2023), of the trials that were not pruned."
    return [Table(["setting", "importance"], rows, note)]


def _table(trials: Sequence[FrozenTrial], names: Sequence[str], shown: str) -> Table:
    ordered = sorted(trials, key=lambda t: -(t.value if t.value is not None else -1e9))
    rows = [
        [
            str(trial.number + 1),
            *(_shown(trial.params.get(name, "")) for name in names),
            f"{trial.user_attrs['value']:.4f}" if "value" in trial.user_attrs else "",
            trial.user_attrs.get("failed", trial.state.name.lower()),
        ]
        for trial in ordered
    ]
    return Table(["trial", *names, shown, "end"], rows, words=True)


def _shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
