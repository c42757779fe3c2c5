"""The answer to a question: a part of the context that comes with it, or none."""

from fleetbert.core.task_names import SHAPES
from fleetbert.tasks.question_answering.answer import Candidate, ContextAnswer, ContextAnswers
from fleetbert.tasks.question_answering.decoding import NO_ANSWER
from fleetbert.tasks.question_answering.labels import Questions
from fleetbert.tasks.question_answering.metrics import AnswerMetrics
from fleetbert.tasks.task import Task

__all__ = ["NO_ANSWER", "QUESTION_ANSWERING", "Candidate", "ContextAnswer"]

QUESTION_ANSWERING = Task(
    SHAPES["question_answering"], AnswerMetrics, ContextAnswers, Questions, loss=f"{__name__}.loss"
)
