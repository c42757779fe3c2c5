"""Masked language model: some words are hidden and predicted. It pretrains, and answers nothing."""

from fleetbert.core.task_names import SHAPES
from fleetbert.tasks.masked_words.labels import HiddenWords
from fleetbert.tasks.masked_words.metrics import WordMetrics
from fleetbert.tasks.task import Task

MASKED_WORDS = Task(SHAPES["mlm"], WordMetrics, labels=HiddenWords, loss=f"{__name__}.loss")
