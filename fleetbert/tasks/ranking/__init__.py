"""A number for a query and a document, by which a query's documents are ranked."""

from fleetbert.core.task_names import SHAPES
from fleetbert.tasks.ranking.labels import Relevance
from fleetbert.tasks.ranking.metrics import RankingMetrics
from fleetbert.tasks.regression.answer import NumberAnswers
from fleetbert.tasks.task import Task

RANKING = Task(SHAPES["ranking"], RankingMetrics, NumberAnswers, Relevance, loss=f"{__name__}.loss")
