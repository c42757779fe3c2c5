"""Spans of a text, each of a kind: named entities, and whatever else tags of tokens tell."""

from fleetbert.core.task_names import SHAPES
from fleetbert.tasks.task import Task
from fleetbert.tasks.token_classification.answer import Span, SpansAnswer, SpansAnswers
from fleetbert.tasks.token_classification.labels import Spans
from fleetbert.tasks.token_classification.metrics import SpanMetrics

__all__ = ["TOKEN_CLASSIFICATION", "Span", "SpansAnswer"]

TOKEN_CLASSIFICATION = Task(
    SHAPES["token_classification"], SpanMetrics, SpansAnswers, Spans, loss=f"{__name__}.loss"
)
