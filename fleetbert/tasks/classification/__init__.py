"""A label for each text, or for each pair of texts."""

from fleetbert.core.task_names import SHAPES
from fleetbert.tasks.classification.answer import LabelAnswer, LabelAnswers
from fleetbert.tasks.classification.labels import ClassLabels
from fleetbert.tasks.classification.metrics import ClassMetrics
from fleetbert.tasks.task import Task

__all__ = ["CLASSIFICATION", "PAIR_CLASSIFICATION", "LabelAnswer"]

CLASSIFICATION, PAIR_CLASSIFICATION = (
    Task(SHAPES[name], ClassMetrics, LabelAnswers, ClassLabels, loss=f"{__name__}.loss")
    for name in ("classification", "pair_classification")
)
