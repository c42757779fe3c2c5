"""F1 of spans."""

from __future__ import annotations

from typing import Sequence

import numpy as np

from fleetbert.tasks.calibration import Fitted, fit_temperature
from fleetbert.tasks.evaluator import Evaluator
from fleetbert.tasks.metrics import Metrics, cross_entropy, softmax, table
from fleetbert.tasks.token_classification.scheme import scheme_of, spans_of, tags_of

# In a confusion matrix of spans: no span there.
NOTHING = "none"


class SpanMetrics(Evaluator):
    gate_metric = "entity_f1"
    figures = (
        ("entity_f1", "entity F1"),
        ("entity_precision", "precision of spans"),
        ("entity_recall", "recall of spans"),
    )
    takes_metrics = False
    calibrates = True

    def fit(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Fitted:
        """A temperature of the words' tags."""
        tags, logits = _words(truth, outputs)
        is_true = scheme_of(labels).tags[tags][:, None] == np.arange(len(labels))
        return Fitted(fit_temperature(is_true, logits, softmax), {})

    def at_temperature(self, outputs: np.ndarray, temperature: float) -> np.ndarray:
        divided = np.empty(len(outputs), object)
        for number, output in enumerate(outputs):
            divided[number] = output._replace(logits=output.logits / np.float32(temperature))
        return divided

    def confidence(
        self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of the likeliest tag of each word."""
        tags, logits = _words(truth, outputs)
        return softmax(logits).max(axis=1), logits.argmax(1) == scheme_of(labels).tags[tags]

    def evaluate(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Metrics:
        """Entity F1, precision and recall, the loss of words, the table by kind, and which kinds
        were taken for which."""
        scheme = scheme_of(labels)
        answered = [spans_of(output, scheme) for output in outputs]
        tags, logits = _words(truth, outputs)
        loss = cross_entropy(scheme.tags[tags], logits) if len(tags) else 0.0
        return {**entities(list(truth), answered, scheme.kinds), "loss": loss}

    def sums(
        self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]
    ) -> np.ndarray | None:
        """int64 [texts, 3]: spans that are right, that are there, and that were answered."""
        scheme = scheme_of(labels)
        pairs = [(spans, spans_of(output, scheme)) for spans, output in zip(truth, outputs)]
        rows = [
            ((expected[:, None] == predicted).all(2).sum(), len(expected), len(predicted))
            for expected, predicted in pairs
        ]
        return np.array(rows, np.int64).reshape(-1, 3)

    def of_sums(self, sums: np.ndarray) -> float:
        right, there, answered = sums.tolist()
        return float(2 * right / max(there + answered, 1))


def _words(truth: np.ndarray, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of all words what `tags_of` asks, int64 [words], and their logits [words, labels]."""
    by_text = [tags_of(output.words, spans) for output, spans in zip(outputs, truth)]
    tags = np.concatenate([*by_text, np.zeros(0, np.int64)])
    logits = [output.logits for output in outputs]
    return tags, np.concatenate(logits) if len(tags) else np.zeros((0, 1), np.float32)


def entities(
    truth: Sequence[np.ndarray], answered: Sequence[np.ndarray], kinds: Sequence[str]
) -> Metrics:
    """n, entity_f1, entity_precision, entity_recall, classes, labels, confusion, counted.

    truth, answered: of each text int64 [spans, 3], where each begins, ends, and its kind. A span is
    right where all three are: seqeval's f1_score, precision_score and recall_score. confusion: the
    kinds of spans at the same place, with NOTHING where the other side has none there.
    """
    size = len(kinds)
    counts = np.zeros((size + 1, size + 1), np.int64)
    for true, given in zip(truth, answered):
        there, answers = (
            {(begin, end): kind for begin, end, kind in spans.tolist()} for spans in (true, given)
        )
        for place in {**there, **answers}:
            counts[there.get(place, size), answers.get(place, size)] += 1
    right = counts.diagonal()[:size]
    support, predicted = counts[:size].sum(1), counts[:, :size].sum(0)
    return {
        "n": len(truth),
        "entity_f1": float(2 * right.sum() / max(support.sum() + predicted.sum(), 1)),
        "entity_precision": float(right.sum() / max(predicted.sum(), 1)),
        "entity_recall": float(right.sum() / max(support.sum(), 1)),
        "classes": table(right, support, predicted, kinds),
        "labels": [*kinds, NOTHING],
        "confusion": counts.tolist(),
        "counted": "spans",
    }
