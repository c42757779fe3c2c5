"""What happens around the steps. A callback is one file with one class; `build` lists them.

Each hook gets the run (`fleetbert.train.loop.Run`): its job, strategy, task and state. To add a
callback, write its class below `Callback`, give it keys in `fleetbert.config.Callbacks` if it has
any, and add it to `build`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fleetbert.launch import heartbeat

if TYPE_CHECKING:
    from fleetbert.train.loop import Run


class Callback:
    """Hooks of the loop, in the order in which they are called. All do nothing by default."""

    def on_start(self, run: Run) -> None:
        """Before the first step; a resumed run has its state already."""

    def before_reading(self, run: Run) -> None:
        """Before a step's texts are collected."""

    def after_reading(self, run: Run) -> None:
        """The step's arrays are there, nothing is computed yet."""

    def on_step(self, run: Run) -> None:
        """After each optimizer step; `run.state.step` counts it already."""

    def on_log(self, run: Run, row: dict[str, Any]) -> None:
        """Every `trainer.log_every` steps, on every rank, with the row for metrics.jsonl."""

    def on_evaluation(self, run: Run, figures: dict[str, Any]) -> None:
        """After an evaluation, on every rank."""

    def on_end(self, run: Run, summary: dict[str, Any]) -> None:
        """All steps are done; `summary` is about to be written and may be added to."""

    def close(self, run: Run) -> None:
        """Always called last, also after an error."""


def build(run: Run) -> list[Callback]:
    """The callbacks of a run, in calling order. Files are written on rank 0 only."""
    from fleetbert.train.callbacks.checkpoint import Checkpoints
    from fleetbert.train.callbacks.evaluation import Evaluation
    from fleetbert.train.callbacks.metrics import Metrics
    from fleetbert.train.callbacks.profiler import Profiler
    from fleetbert.train.callbacks.progress import Progress
    from fleetbert.train.callbacks.supervised import Supervised
    from fleetbert.train.callbacks.visualdl import VisualDL

    wanted = run.job.callbacks
    first = run.strategy.rank == 0
    chosen: list[Callback] = []
    if heartbeat.is_supervised():
        chosen.append(Supervised())
    if wanted.profiler.enabled:
        chosen.append(Profiler())
    if first:
        chosen.append(Metrics())
    if first and wanted.visualdl:
        chosen.append(VisualDL())
    if first and wanted.progress:
        chosen.append(Progress())
    # Evaluation before checkpoints: a new best is to be saved with the step that reached it.
    return [*chosen, Evaluation(), Checkpoints(), *run.strategy.callbacks()]
