"""A number for a query and a document, by which a query's documents are ranked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Sequence

import numpy as np

from fleetbert.core.errors import UserError
from fleetbert.data import batching, read
from fleetbert.data.split import Split
from fleetbert.tasks import metrics
from fleetbert.tasks.collect import Arrays, Several
from fleetbert.tasks.regression import Regression
from fleetbert.tasks.task import Metrics

PLACES = 10  # of the first relevant document, that the report counts one by one
BINS = 20


class Documents(Several):
    """With `task.negatives` an example is a document that answers its query and so many that do
    not, drawn anew each epoch, the right one first. Without, an example is a pair."""

    drawn: int | None = None  # the epoch that `examples` are of

    def plan(self, epoch: int) -> batching.Plan:
        self._draw(epoch)
        return self.plan_several(epoch, 1 + self.job.task.negatives)

    def micro_batches(
        self, indices: np.ndarray, epoch: int, parts: int, shard: slice
    ) -> list[Arrays]:
        self._draw(epoch)
        return super().micro_batches(indices, epoch, parts, shard)

    def _draw(self, epoch: int) -> None:
        """Sets `examples`, int64 [examples, pairs of one], and their `lengths` and `lines`."""
        if self.drawn == epoch:
            return
        self.drawn, negatives = epoch, self.job.task.negatives
        pairs = np.arange(len(self.split.labels))[:, None]
        if negatives:
            pairs = draw(self.split.labels, negatives, [self.job.trainer.seed, epoch])
        self.examples = pairs
        self.lengths = self.split.encodings.lengths[pairs].max(1)

    @property
    def lines(self) -> np.ndarray:
        of_first: np.ndarray = self.split.lines[self.examples[:, 0]]
        return of_first

    def texts_of(self, part: np.ndarray) -> np.ndarray:
        pairs: np.ndarray = self.examples[part]
        return pairs


def draw(targets: np.ndarray, negatives: int, seed: list[int]) -> np.ndarray:
    """int64 [examples, 1 + negatives]: each pair whose document answers its query, with others of
    the query that do not, all different while there are as many. targets: [pairs, 2] as
    `Ranking.targets` gives them. Queries that lack one of the kinds give nothing."""
    relevant, queries = targets[:, 0] > 0, targets[:, 1].astype(np.int64)
    rng = np.random.default_rng(seed)
    others = np.flatnonzero(~relevant)
    others = others[np.lexsort((rng.random(len(others)), queries[others]))]
    counts = np.bincount(queries[others], minlength=queries.max() + 1)
    begins = np.cumsum(counts) - counts
    own = np.flatnonzero(relevant)
    own = own[counts[queries[own]] > 0]
    count = counts[queries[own]][:, None]
    start = (rng.random((len(own), 1)) * count).astype(np.int64)
    chosen = begins[queries[own]][:, None] + (start + np.arange(negatives)) % count
    return np.concatenate([own[:, None], others[chosen]], 1)


class Ranking(Regression):
    """A question is a query and a document. The targets of a split are float32 [pairs, 2]: 1 for a
    document that answers its query, else 0; and the query's number."""

    label = "relevance"
    loss = f"{__name__}.loss"
    gate_metric = "map"
    takes_metrics = False
    collects = Documents

    def __init__(self) -> None:
        super().__init__("ranking", pair=True)

    def table_format(
        self, path: str | Path, quoting: read.Quoting = "auto", labelled: bool | None = None
    ) -> read.Format:
        """A labelled line has a label, or a `text_c` that does not answer its query."""
        form = read.table_format(path, pair=True, labelled=False, quoting=quoting, label=self.label)
        needs = self.labelled if labelled is None else labelled
        return form._replace(labelled=needs, triplets=needs)

    def targets(self, written: Sequence[str], labels: Sequence[str]) -> np.ndarray:
        pairs = [json.loads(one) for one in written]
        numbers = {query: number for number, query in enumerate(dict.fromkeys(q for _, q in pairs))}
        found = [(relevant, numbers[query]) for relevant, query in pairs]
        return np.array(found, np.float32).reshape(-1, 2)

    def check_targets(self, name: str, targets: np.ndarray) -> None:
        if not len(draw(targets, 1, [0])):
            raise UserError(
                f"{name}: no query has both a document that answers it (label 1) and one that does "
                "not (label 0), so that there is nothing to rank"
            )

    def alike(self, truth: np.ndarray) -> str:
        return ""  # `check_targets` refuses such a table

    def groups(self, split: Split) -> np.ndarray:
        """The documents of a query."""
        queries: np.ndarray = split.labels[:, 1]
        return queries

    def describe(self, targets: np.ndarray, labels: Sequence[str]) -> str:
        queries = len(np.unique(targets[:, 1]))
        return f"{len(targets)} documents of {queries} queries, {int(targets[:, 0].sum())} relevant"

    def doubts(self, targets: np.ndarray, labels: Sequence[str]) -> list[str]:
        right = np.bincount(targets[:, 1].astype(np.int64), targets[:, 0])
        all_of = np.bincount(targets[:, 1].astype(np.int64))
        useless = int(((right == 0) | (right == all_of)).sum())
        if useless * 2 <= len(all_of):
            return []
        return [f"{useless} of {len(all_of)} queries have documents of one kind only"]

    def evaluate(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Metrics:
        """Mean average precision and mean reciprocal rank, over the queries."""
        return metrics.ranking(self._ranked(truth, outputs), len(truth))

    def _ranked(self, truth: np.ndarray, outputs: np.ndarray) -> metrics.Ranked:
        return metrics.ranked(truth[:, 0] > 0, truth[:, 1], outputs[:, 0])

    def sums(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> np.ndarray:
        """float64 [queries, 2]: average precision, and 1. Documents of a query stay together."""
        precision = self._ranked(truth, outputs).precision
        return np.stack([precision, np.ones(len(precision))], 1)

    def of_sums(self, sums: np.ndarray) -> float:
        return float(sums[0] / max(sums[1], 1))

    def plots(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Metrics:
        """`first_places`: queries whose first relevant document comes first, second, ..., and after
        PLACES; `answers_by_relevance`: bounds of BINS, and the documents in each by relevance."""
        places = np.minimum(self._ranked(truth, outputs).place, PLACES + 1) - 1
        relevant, values = truth[:, 0] > 0, outputs[:, 0].astype(np.float64)
        bounds = np.histogram_bin_edges(values, BINS)
        counts = [np.histogram(values[which], bounds)[0] for which in (relevant, ~relevant)]
        return {
            "first_places": np.bincount(places, minlength=PLACES + 1).tolist(),
            "answers_by_relevance": {
                "bounds": bounds.round(4).tolist(),
                "relevant": counts[0].tolist(),
                "others": counts[1].tolist(),
            },
        }


RANKING = Ranking()
