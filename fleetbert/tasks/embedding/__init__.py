"""A vector for each text. Two texts are compared by the cosine of theirs."""

from fleetbert.core.task_names import SHAPES
from fleetbert.tasks.embedding.answer import VectorAnswer, VectorAnswers
from fleetbert.tasks.embedding.labels import Similar
from fleetbert.tasks.embedding.metrics import VectorMetrics
from fleetbert.tasks.task import Task

__all__ = ["EMBEDDING", "VectorAnswer"]

EMBEDDING = Task(
    SHAPES["embedding"], VectorMetrics, VectorAnswers, Similar, loss=f"{__name__}.loss"
)
