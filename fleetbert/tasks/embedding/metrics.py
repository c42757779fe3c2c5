"""How well cosines of vectors follow numbers, or tell texts that belong together."""

from __future__ import annotations

from typing import Sequence

import numpy as np

from fleetbert.core.errors import UserError
from fleetbert.tasks.evaluator import Criterion, Part, together
from fleetbert.tasks.metrics import BLOCK, Metrics
from fleetbert.tasks.regression.metrics import NumberMetrics

BINS = 20


class VectorMetrics(NumberMetrics):
    """Of a labelled example, which is two texts, `per_example` gives the cosine."""

    figures = (("spearman", "Spearman"), ("pearson", "Pearson"), ("mrr_10", "MRR@10"))
    takes_metrics = False

    def per_example(self, outputs: np.ndarray) -> np.ndarray:
        """Cosines float32 [examples, 1]."""
        cosines: np.ndarray = (outputs[::2] * outputs[1::2]).sum(1, keepdims=True)
        return cosines

    def evaluate(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Metrics:
        """Spearman's and Pearson's correlation of the cosines with the numbers."""
        metrics = super().evaluate(truth, outputs, labels)
        return {name: metrics[name] for name in ("n", "spearman", "pearson")}

    def evaluate_parts(
        self, parts: Sequence[Part], truth: np.ndarray, labels: Sequence[str], room: np.ndarray
    ) -> Metrics:
        """Correlations of the cosines with the numbers; of pairs without numbers MRR@10: how near
        a first text is to its own second one, among all of the table."""
        vectors = together(parts, room)
        texts = 1 + int(truth[:, 1].max())
        numbers, first, second = truth[::texts, 0], vectors[::texts], vectors[1::texts]
        if texts < 2:
            raise UserError("data.dev: has single texts; give text_a and text_b")
        if np.isnan(numbers).any():
            metrics = {"n": len(first), "mrr_10": mrr(first, second)}
            return {**metrics, "similarities": similarities(first, second)}
        cosines = (first * second).sum(1, keepdims=True)
        metrics = self.evaluate(numbers, cosines, labels)
        return {**metrics, **self.plots(numbers, cosines, labels)}

    def criterion(self, wanted: str, metrics: Metrics) -> Criterion:
        known = [name for name in (wanted, self.gate_metric, "mrr_10") if name in metrics]
        return Criterion(known[0], False)


def similarities(first: np.ndarray, second: np.ndarray) -> Metrics:
    """What a report draws of pairs: bounds of BINS, and the cosines in each, `own` of the pairs and
    `others` of first texts with the second one of the next pair."""
    cosines = [(first * partners).sum(1) for partners in (second, np.roll(second, 1, axis=0))]
    bounds = np.histogram_bin_edges(np.concatenate(cosines), BINS)
    matching, others = (np.histogram(values, bounds)[0].tolist() for values in cosines)
    return {"bounds": bounds.tolist(), "own": matching, "others": others}


def mrr(queries: np.ndarray, documents: np.ndarray, most: int = 10) -> float:
    """Mean reciprocal rank of each query's own document, the one of its number, by the product of
    their vectors among all documents; 0 where it is not among the first `most`. Vectors float32
    [queries, width] and [documents, width]; a document that is as near counts as nearer."""
    total, rows = 0.0, max(1, BLOCK // len(documents))
    for start in range(0, len(queries), rows):
        scores = queries[start : start + rows] @ documents.T
        matching = scores[np.arange(len(scores)), np.arange(start, start + len(scores))]
        places = (scores >= matching[:, None]).sum(1)
        total += float((1 / places[places <= most]).sum())
    return total / len(queries)
