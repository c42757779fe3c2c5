"""The answer to a question: a part of the context that comes with it, or none."""

from fleetbert.core.task_names import SHAPES
from fleetbert.tasks.question_answering.answer import ContextAnswers
from fleetbert.tasks.question_answering.labels import Questions
from fleetbert.tasks.question_answering.metrics import AnswerMetrics
from fleetbert.tasks.task import Task

QUESTION_ANSWERING = Task(
    SHAPES["question_answering"], AnswerMetrics, ContextAnswers, Questions, loss=f"{__name__}.loss"
)
