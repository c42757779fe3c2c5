"""A number for each text, or for each pair of texts."""

from fleetbert.core.task_names import SHAPES
from fleetbert.tasks.regression.answer import NumberAnswer, NumberAnswers
from fleetbert.tasks.regression.labels import Numbers
from fleetbert.tasks.regression.metrics import NumberMetrics
from fleetbert.tasks.task import Task

__all__ = ["PAIR_REGRESSION", "REGRESSION", "NumberAnswer"]

REGRESSION, PAIR_REGRESSION = (
    Task(SHAPES[name], NumberMetrics, NumberAnswers, Numbers, loss=f"{__name__}.loss")
    for name in ("regression", "pair_regression")
)
