"""What happens around the steps. A callback is one file with one class; `build` lists them.

Each hook gets the run (`fleetbert.train.loop.Run`): its job, strategy, task and state. To add a
callback, write its class below `Callback`, give it keys in `fleetbert.config.Callbacks` if it has
any, and add it to `build`.
"""

from __future__ import annotations

from fleetbert import trackers
from fleetbert.train.callbacks.checkpoint import Checkpoints
from fleetbert.train.callbacks.early_stopping import EarlyStopping
from fleetbert.train.callbacks.evaluation import Evaluation
from fleetbert.train.callbacks.metrics import MetricsFile
from fleetbert.train.callbacks.profiler import Profiler
from fleetbert.train.callbacks.progress import Progress
from fleetbert.train.callbacks.tracking import Tracking
from fleetbert.train.loop import Callback, Run

__all__ = ["Callback", "build"]


def build(run: Run) -> list[Callback]:
    """The callbacks of a run, in calling order. Files are written on rank 0 only."""
    wanted = run.job.callbacks
    first = run.strategy.rank == 0
    chosen: list[Callback] = []
    if wanted.profiler.enabled:
        chosen.append(Profiler())
    if first:
        chosen.append(MetricsFile())
    targets = {kind: getattr(wanted, kind) for kind in trackers.KINDS}
    if first and any(targets.values()):
        chosen.append(Tracking({kind: target for kind, target in targets.items() if target}))
    if first and wanted.progress:
        chosen.append(Progress())
    # Evaluation before checkpoints: a new best is to be saved with the step that reached it.
    chosen += [Evaluation(), Checkpoints()]
    if run.job.trainer.patience is not None:
        chosen.append(EarlyStopping())
    return chosen
