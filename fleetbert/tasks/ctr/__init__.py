"""Clicks: whether a row of numbers and hashed categories is followed by one."""

from fleetbert.core.task_names import SHAPES
from fleetbert.tasks.ctr import criteo, metrics
from fleetbert.tasks.ctr.labels import Collector
from fleetbert.tasks.evaluator import Criterion
from fleetbert.tasks.task import RowTask

CLICKS = RowTask(
    SHAPES["ctr"],
    read=criteo.read,
    check_dev=metrics.check_dev,
    collector=Collector,
    evaluate=metrics.evaluate,
    criterion=Criterion("auc", False),
    figures=(("auc", "AUC"),),
    loss=f"{__name__}.loss",
)
