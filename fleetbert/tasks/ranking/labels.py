"""A query's documents, some of which answer it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Sequence

import numpy as np

from fleetbert.config import Columns
from fleetbert.core.errors import UserError
from fleetbert.data import batching, read
from fleetbert.data.split import Split
from fleetbert.tasks.collect import Arrays, Several
from fleetbert.tasks.regression.labels import Numbers


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
        self.lengths = self.text_lengths[pairs].max(1)

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
    `Relevance.targets` gives them. Queries that lack one of the kinds give nothing."""
    relevant, queries = targets[:, 0] > 0, targets[:, 1].astype(np.int64)
    rng = np.random.default_rng(seed)
    others = np.flatnonzero(~relevant)
    others = others[np.lexsort((rng.random(len(others)), queries[others]))]
    counts = np.bincount(queries[others], minlength=queries.max() + 1)
    begins = np.cumsum(counts) - counts
    answering = np.flatnonzero(relevant)
    answering = answering[counts[queries[answering]] > 0]
    count = counts[queries[answering]][:, None]
    start = (rng.random((len(answering), 1)) * count).astype(np.int64)
    chosen = begins[queries[answering]][:, None] + (start + np.arange(negatives)) % count
    return np.concatenate([answering[:, None], others[chosen]], 1)


class Relevance(Numbers):
    """A question is a query and a document. The targets of a split are float32 [pairs, 2]: 1 for a
    document that answers its query, else 0; and the query's number."""

    collects = Documents

    def table_format(
        self, path: str | Path, columns: Columns = read.USUAL, labelled: bool | None = None
    ) -> read.Format:
        """A labelled line has a label, or a `text_c` that does not answer its query."""
        form = super().table_format(path, columns, labelled=False)
        needs = self.shape.labelled if labelled is None else labelled
        return form._replace(labelled=needs, triplets=needs)

    def targets(self, written: Sequence[str], labels: Sequence[str]) -> np.ndarray:
        pairs = [json.loads(pair) for pair in written]
        numbers = {query: number for number, query in enumerate(dict.fromkeys(q for _, q in pairs))}
        numbered = [(relevant, numbers[query]) for relevant, query in pairs]
        return np.array(numbered, np.float32).reshape(-1, 2)

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
