"""What a model learns and answers, a folder for each kind. No Paddle, but in the modules `loss`.

A kind from outside the package is a `Task`, given to `register`.
"""

from __future__ import annotations

from fleetbert import bundle as bundles
from fleetbert.core import task_names
from fleetbert.core.registry import Registry
from fleetbert.core.task_names import Shape
from fleetbert.tasks.answer import Answer, Answers, Tensor, Values
from fleetbert.tasks.classification import CLASSIFICATION, PAIR_CLASSIFICATION, LabelAnswer
from fleetbert.tasks.collect import Arrays
from fleetbert.tasks.ctr import CLICKS, ClickAnswer
from fleetbert.tasks.embedding import EMBEDDING, VectorAnswer
from fleetbert.tasks.evaluator import Criterion, Evaluator, Part
from fleetbert.tasks.labels import Labels
from fleetbert.tasks.masked_words import MASKED_WORDS
from fleetbert.tasks.metrics import Metrics
from fleetbert.tasks.multi_label import MULTI_LABEL, LabelsAnswer
from fleetbert.tasks.question_answering import (
    NO_ANSWER,
    QUESTION_ANSWERING,
    Candidate,
    ContextAnswer,
)
from fleetbert.tasks.ranking import RANKING
from fleetbert.tasks.regression import PAIR_REGRESSION, REGRESSION, NumberAnswer
from fleetbert.tasks.task import Task
from fleetbert.tasks.token_classification import TOKEN_CLASSIFICATION, Span, SpansAnswer

__all__ = [
    "NO_ANSWER",
    "Answer",
    "Answers",
    "Arrays",
    "Candidate",
    "ClickAnswer",
    "ContextAnswer",
    "Criterion",
    "Evaluator",
    "LabelAnswer",
    "Labels",
    "LabelsAnswer",
    "Metrics",
    "NumberAnswer",
    "Part",
    "Shape",
    "Span",
    "SpansAnswer",
    "Task",
    "Tensor",
    "Values",
    "VectorAnswer",
    "get",
    "of",
    "register",
]

BUILT_IN: tuple[Task, ...] = (
    CLASSIFICATION,
    PAIR_CLASSIFICATION,
    REGRESSION,
    PAIR_REGRESSION,
    RANKING,
    MULTI_LABEL,
    TOKEN_CLASSIFICATION,
    QUESTION_ANSWERING,
    EMBEDDING,
    MASKED_WORDS,
    CLICKS,
)
_tasks: Registry[Task] = Registry("task.name", {})
# The figures that pages and progress show of an evaluation, and what they call them.
FIGURES: dict[str, str] = {}


def register(task: Task) -> None:
    """Add a kind of task: jobs and bundles may name it from now on."""
    task_names.SHAPES[task.name] = task.shape
    _tasks[task.name] = task
    FIGURES.update(task.metrics.figures)


def get(name: str) -> Task:
    """The task that `task.name` of a job or a bundle names."""
    return _tasks[name]


def of(described: bundles.Task) -> Task:
    """The task of a bundle, as its manifest describes it."""
    task = get(described.name).of_width(described.width)
    return task.with_thresholds(described.thresholds)


for _task in BUILT_IN:
    register(_task)
