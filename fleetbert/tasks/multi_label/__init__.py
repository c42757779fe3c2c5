"""Several labels for each text, or none."""

from fleetbert.core.task_names import SHAPES
from fleetbert.tasks.multi_label.answer import LabelsAnswer, LabelsAnswers
from fleetbert.tasks.multi_label.labels import SeveralLabels
from fleetbert.tasks.multi_label.metrics import SeveralMetrics
from fleetbert.tasks.task import Task

__all__ = ["MULTI_LABEL", "LabelsAnswer"]

MULTI_LABEL = Task(
    SHAPES["multi_label_classification"],
    SeveralMetrics,
    LabelsAnswers,
    SeveralLabels,
    loss=f"{__name__}.loss",
)
