"""The built-in callbacks, a class in a file each; `build` chooses them.

Each hook gets the run (`fleetbert.training.loop.Run`): its job, strategy, task and state. To add a
callback, write its class below `Callback`, give it keys in `fleetbert.config.Callbacks` if it has
any, and add it to `build`.
"""

from __future__ import annotations

import logging

from fleetbert.core import extras
from fleetbert.training import trackers
from fleetbert.training.callbacks.checkpoint import Checkpoints
from fleetbert.training.callbacks.early_stopping import EarlyStopping
from fleetbert.training.callbacks.evaluation import Evaluation
from fleetbert.training.callbacks.half_operators import HalfOperators
from fleetbert.training.callbacks.metrics import MetricsFile
from fleetbert.training.callbacks.profiler import Profiler
from fleetbert.training.callbacks.progress import Progress
from fleetbert.training.callbacks.tracking import Histograms, Tracking
from fleetbert.training.loop import Callback, Run

log = logging.getLogger(__name__)

__all__ = ["Callback", "build"]


def build(run: Run, save_last: bool = True) -> list[Callback]:
    """Return the callbacks of a run, in calling order. Only rank 0 writes files.

    save_last: see `Checkpoints`.
    """
    settings = run.job.callbacks
    first = run.strategy.rank == 0
    chosen: list[Callback] = []
    if settings.profiler.enabled:
        chosen.append(Profiler())
    if run.precision.mixed:
        chosen.append(HalfOperators())
    if first:
        chosen.append(MetricsFile())
    targets = {kind: getattr(settings, kind) for kind in trackers.KINDS}
    if first and targets["visualdl"] and extras.missing("tracking"):
        # On by default, so it is no reason to refuse the run.
        log.info(f"VisualDL logs are not written: they need {extras.command('tracking')}")
        targets["visualdl"] = False
    if first and any(targets.values()):
        tracking = Histograms if settings.histograms else Tracking
        chosen.append(tracking({kind: target for kind, target in targets.items() if target}))
    if first and settings.progress:
        chosen.append(Progress())
    # Evaluation before checkpoints: a new best is to be saved with the step that reached it.
    chosen += [Evaluation(), Checkpoints(save_last)]
    if run.job.trainer.patience is not None:
        chosen.append(EarlyStopping())
    return chosen
