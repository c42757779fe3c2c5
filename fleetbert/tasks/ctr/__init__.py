"""Clicks: whether a row of numbers and hashed categories is followed by one."""

from fleetbert.core.task_names import SHAPES
from fleetbert.tasks.ctr.answer import ClickAnswer, ClickAnswers
from fleetbert.tasks.ctr.labels import Clicked
from fleetbert.tasks.ctr.metrics import ClickMetrics
from fleetbert.tasks.task import Task

__all__ = ["CLICKS", "ClickAnswer"]

CLICKS = Task(SHAPES["ctr"], ClickMetrics, ClickAnswers, Clicked, loss=f"{__name__}.loss")
