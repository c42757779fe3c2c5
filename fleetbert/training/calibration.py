"""Calibrates the probabilities of a trained network (see `tasks.calibration`)."""

from __future__ import annotations

import logging

import numpy as np
import paddle

from fleetbert.data.split import Split
from fleetbert.models import task_heads
from fleetbert.tasks import Metrics, Task
from fleetbert.tasks.calibration import Fitted, calibration_error, reliability
from fleetbert.training.texts import TextTask

log = logging.getLogger(__name__)


def calibrate(task: TextTask, network: task_heads.Headed, held: Split) -> tuple[Fitted, Metrics]:
    """Fit a temperature to the texts `held`, and make the network divide its outputs by it.

    Returns what was fitted, and a summary of it, ready for JSON: n (texts), temperature,
    thresholds, and on the dev texts, if there are any, `before` and `after`: ece (expected
    calibration error), reliability [bins, 3] and the task's own figures.
    """
    with paddle.no_grad():
        fitted = task.task.metrics.fit(held.labels, task.outputs(network, held), task.labels)
        dev = None if task.dev is None else task.outputs(network, task.dev)
    if fitted.temperature == 1:
        log.warning(
            f"trainer.calibrate: no temperature was fitted, as all of the {len(held.labels)} texts "
            "held out is answered right; hold out more"
        )
    task_heads.scale_outputs(network, 1 / fitted.temperature)
    summary: Metrics = {
        "n": len(held.labels),
        "temperature": fitted.temperature,
        "thresholds": fitted.thresholds,
    }
    line = (
        f"probabilities: temperature {fitted.temperature:.3f}, from {summary['n']} texts held out"
    )
    if task.dev is not None and dev is not None:
        after = task.task.with_thresholds(fitted.thresholds)
        truth, labels = task.dev.labels, task.labels
        summary["before"] = _measure(task.task, truth, dev, labels)
        dev = task.task.metrics.at_temperature(dev, fitted.temperature)
        summary["after"] = _measure(after, truth, dev, labels)
        summary["after"].update({name: float(of(truth, dev)) for name, of in task.metrics.items()})
        errors = [summary[when]["ece"] for when in ("before", "after")]
        line += "; calibration error on {}: {:.4f} -> {:.4f}".format(task.dev.name, *errors)
    log.info(line)
    return fitted, summary


def _measure(task: Task, truth: np.ndarray, outputs: np.ndarray, labels: list[str]) -> Metrics:
    confidence, right = task.metrics.confidence(truth, outputs, labels)
    return {
        **task.metrics.evaluate(truth, outputs, labels),
        "ece": calibration_error(confidence, right),
        "reliability": reliability(confidence, right).round(4).tolist(),
    }
