"""Metrics of answers, by scikit-learn's and SciPy's definitions. NumPy only."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Sequence

import numpy as np

# Ready for JSON: numbers by name, and tables of them.
Metrics = Dict[str, Any]

# The figures that pages and progress show of an evaluation, and what they call them.
FIGURES = {
    "accuracy": "accuracy",
    "macro_f1": "macro F1",
    "micro_f1": "micro F1",
    "subset_accuracy": "all labels right",
    "auc": "AUC",
    "spearman": "Spearman",
    "pearson": "Pearson",
    "mse": "squared error",
    "entity_f1": "entity F1",
    "entity_precision": "precision of spans",
    "entity_recall": "recall of spans",
    "map": "mean average precision",
    "mrr": "MRR",
    "mrr_10": "MRR@10",
}
# A confusion matrix has no more rows: it grows with the square of the labels.
MOST_LABELS = 50
# Pairs of labels that are listed instead, the most frequent first.
MOST_CONFUSIONS = 1000
# In a confusion matrix of spans: no span there.
NOTHING = "none"
# Logits in float64 at a time, 32 MB.
BLOCK = 1 << 22


def classification(truth: np.ndarray, logits: np.ndarray, labels: Sequence[str]) -> Metrics:
    """n, accuracy, macro_f1, loss (nats), classes, labels, confusion.

    truth: int64 [texts]; logits: float32 [texts, labels].
    macro_f1 is the mean F1 over the labels that occur in truth or answers, of which there are
    macro_f1_classes: scikit-learn's f1_score(truth, answers, average="macro"). macro_f1_all is
    that over all labels, where one that does not occur counts 0.
    Above MOST_LABELS labels the classes come worst first, and instead of `confusion` there are
    `confusions`: [true label, answer, texts] of the most frequent mistakes, MOST_CONFUSIONS at
    most, and `confused_pairs`, how many there are. No matrix of the labels is made.
    """
    predicted = logits.argmax(axis=1)
    right, support, answered = (
        np.bincount(numbers, minlength=len(labels))
        for numbers in (truth[truth == predicted], truth, predicted)
    )
    classes = table(right, support, answered, labels)
    f1 = np.array([scores["f1"] for scores in classes.values()])
    occurs = np.zeros(len(labels), bool)
    occurs[truth] = occurs[predicted] = True
    measures: Metrics = {
        "n": len(truth),
        "accuracy": float((truth == predicted).mean()),
        "macro_f1": float(f1[occurs].mean()),
        "macro_f1_classes": int(occurs.sum()),
        "macro_f1_all": float(f1.mean()),
        "loss": cross_entropy(truth, logits),
        "classes": classes,
        "labels": list(labels),
    }
    if len(labels) <= MOST_LABELS:
        measures["confusion"] = count_confusion(truth, predicted, len(labels)).tolist()
        return measures
    pairs = confused(truth, predicted, len(labels))
    measures["classes"] = dict(sorted(classes.items(), key=_worst_first))
    measures["confusions"] = [
        [labels[true], labels[answer], texts] for true, answer, texts in pairs[:MOST_CONFUSIONS]
    ]
    measures["confused_pairs"] = len(pairs)
    return measures


def count_confusion(truth: np.ndarray, predicted: np.ndarray, n_labels: int) -> np.ndarray:
    """int64 [labels, labels]: how many texts of each true label (row) got each label (column)."""
    flat = np.bincount(truth * n_labels + predicted, minlength=n_labels * n_labels)
    return flat.reshape(n_labels, n_labels)


def confused(truth: np.ndarray, predicted: np.ndarray, n_labels: int) -> list[tuple[int, int, int]]:
    """(true label, answer, texts) of each mistake that occurs, the most frequent first."""
    wrong = truth != predicted
    pairs, counts = np.unique(truth[wrong] * n_labels + predicted[wrong], return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return [
        (*divmod(pair, n_labels), count)
        for pair, count in zip(pairs[order].tolist(), counts[order].tolist())
    ]


def table(
    right: np.ndarray, support: np.ndarray, answered: np.ndarray, labels: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Precision, recall and F1 of each label, 0 where nothing was predicted or nothing is there.
    Counts int64 [labels]: of those that are right, that are there, and that were predicted."""
    precision = right / np.maximum(answered, 1)
    recall = right / np.maximum(support, 1)
    f1 = 2 * right / np.maximum(support + answered, 1)
    return {
        label: {
            "precision": float(precision[number]),
            "recall": float(recall[number]),
            "f1": float(f1[number]),
            "support": int(support[number]),
        }
        for number, label in enumerate(labels)
    }


def _worst_first(item: tuple[str, dict[str, float]]) -> tuple[bool, float, float]:
    """Lowest F1 first, of equal ones the label with most texts; labels without texts come last."""
    scores = item[1]
    return scores["support"] == 0, scores["f1"], -scores["support"]


def multi_label(
    truth: np.ndarray, logits: np.ndarray, predicted: np.ndarray, labels: Sequence[str]
) -> Metrics:
    """n, macro_f1, micro_f1, subset_accuracy, loss (nats), classes, labels.

    truth and predicted: bool [texts, labels]; logits: float32 [texts, labels].
    The F1s are scikit-learn's over all labels, with 0 where one neither occurs nor is answered;
    subset_accuracy is the share of texts whose labels are all right, its accuracy_score. loss: the
    mean binary cross entropy. Above MOST_LABELS labels the classes come worst first.
    """
    right, support, answered = ((c).sum(0) for c in (truth & predicted, truth, predicted))
    classes = table(right, support, answered, labels)
    if len(labels) > MOST_LABELS:
        classes = dict(sorted(classes.items(), key=_worst_first))
    return {
        "n": len(truth),
        "macro_f1": float(np.mean([scores["f1"] for scores in classes.values()])),
        "micro_f1": float(2 * right.sum() / max(support.sum() + answered.sum(), 1)),
        "subset_accuracy": float((truth == predicted).all(1).mean()),
        "loss": binary_cross_entropy(truth, logits),
        "classes": classes,
        "labels": list(labels),
    }


def binary_cross_entropy(truth: np.ndarray, logits: np.ndarray) -> float:
    """Mean of -log sigmoid of the logits of what is true, and of minus those of what is not; bool
    and float32 [texts, labels]."""
    total, rows = 0.0, max(1, BLOCK // logits.shape[1])
    for start in range(0, len(truth), rows):
        some = logits[start : start + rows].astype(np.float64)
        total += float(np.logaddexp(0, np.where(truth[start : start + rows], -some, some)).sum())
    return total / truth.size


def precision_recall(truth: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Precision and recall, float64 [thresholds], at each score that occurs, from the highest down:
    scikit-learn's precision_recall_curve, without its last point and the other way round. truth
    bool [texts], true somewhere; scores float32 [texts]."""
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)
    right = np.cumsum(truth[order])[last]
    return right / (last + 1), right / right[-1]


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Probabilities float64 [texts, labels], each by itself."""
    return 0.5 * (1 + np.tanh(0.5 * logits.astype(np.float64)))


def cross_entropy(truth: np.ndarray, logits: np.ndarray) -> float:
    """Mean of -log softmax(logits)[truth] in nats; truth int64 [texts], logits [texts, labels]."""
    total, rows = 0.0, max(1, BLOCK // logits.shape[1])
    for start in range(0, len(truth), rows):
        some = slice(start, start + rows)
        shifted = logits[some].astype(np.float64) - logits[some].max(axis=1, keepdims=True)
        chosen = shifted[np.arange(len(shifted)), truth[some]]
        np.exp(shifted, out=shifted)
        total += float((np.log(shifted.sum(axis=1)) - chosen).sum())
    return total / len(truth)


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
        there, told = (
            {(begin, end): kind for begin, end, kind in spans.tolist()} for spans in (true, given)
        )
        for place in {**there, **told}:
            counts[there.get(place, size), told.get(place, size)] += 1
    right = counts.diagonal()[:size]
    support, found = counts[:size].sum(1), counts[:, :size].sum(0)
    return {
        "n": len(truth),
        "entity_f1": float(2 * right.sum() / max(support.sum() + found.sum(), 1)),
        "entity_precision": float(right.sum() / max(found.sum(), 1)),
        "entity_recall": float(right.sum() / max(support.sum(), 1)),
        "classes": table(right, support, found, kinds),
        "labels": [*kinds, NOTHING],
        "confusion": counts.tolist(),
        "counted": "spans",
    }


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities float64 [texts, labels]."""
    exponentials = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def regression(truth: np.ndarray, values: np.ndarray) -> Metrics:
    """n, spearman, pearson, mse and loss (the same); truth and values float32 [texts].

    The correlations are SciPy's spearmanr and pearsonr; where all numbers of one side are equal,
    where these give NaN, they are 0.
    """
    truth, values = truth.astype(np.float64), values.astype(np.float64)
    mse = float(((truth - values) ** 2).mean())
    return {
        "n": len(truth),
        "spearman": pearson(ranks(truth), ranks(values)),
        "pearson": pearson(truth, values),
        "mse": mse,
        "loss": mse,
    }


def mrr(queries: np.ndarray, documents: np.ndarray, most: int = 10) -> float:
    """Mean reciprocal rank of each query's own document, the one of its number, by the product of
    their vectors among all documents; 0 where it is not among the first `most`. Vectors float32
    [queries, width] and [documents, width]; a document that is as near counts as nearer."""
    total, rows = 0.0, max(1, BLOCK // len(documents))
    for start in range(0, len(queries), rows):
        scores = queries[start : start + rows] @ documents.T
        own = scores[np.arange(len(scores)), np.arange(start, start + len(scores))]
        places = (scores >= own[:, None]).sum(1)
        total += float((1 / places[places <= most]).sum())
    return total / len(queries)


def ranks(values: np.ndarray) -> np.ndarray:
    """float64 [n] from 1, equal ones with the mean of their ranks."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    means: np.ndarray = ends - (counts - 1) / 2
    return means[places.reshape(-1)]


def pearson(one: np.ndarray, other: np.ndarray) -> float:
    """Pearson's correlation of float64 [n] each; 0 where one does not vary."""
    if not len(one) or one.min() == one.max() or other.min() == other.max():
        return 0.0
    centred = [side - side.mean() for side in (one, other)]
    one, other = (side / np.abs(side).max() for side in centred)  # squares stay in range
    return float((one @ other) / np.sqrt((one @ one) * (other @ other)))


class Ranked(NamedTuple):
    """Of each query with a relevant document: its average precision, float64 [queries], and the
    place from 1 of the first relevant one, int64 [queries]."""

    precision: np.ndarray
    place: np.ndarray


def ranked(relevant: np.ndarray, queries: np.ndarray, scores: np.ndarray) -> Ranked:
    """Documents in the order of their scores, of each query by themselves; relevant bool [pairs],
    queries [pairs], the number of each one's query, scores float32 [pairs].

    Average precision is scikit-learn's average_precision_score: documents with one score come in
    together. For the place of the first relevant one they go before it.
    """
    order = np.lexsort((relevant, -scores, queries))
    relevant, queries, scores = relevant[order], queries[order], scores[order]
    begins = np.diff(queries, prepend=np.nan) != 0
    number = np.cumsum(begins) - 1  # of each pair's query
    start = np.flatnonzero(begins)
    right = np.cumsum(relevant)
    before = right[start] - relevant[start]  # relevant ones of all queries before
    last_of_score = np.append((np.diff(scores) != 0) | begins[1:], True)
    ends = np.flatnonzero(last_of_score)
    end = ends[np.searchsorted(ends, np.arange(len(order)))]
    precision = (right[end] - before[number]) / (end - start[number] + 1)
    found = number[relevant]
    kept, first, counts = np.unique(found, return_index=True, return_counts=True)
    sums = np.bincount(found, precision[relevant], len(start))[kept]
    places = np.flatnonzero(relevant)[first] - start[kept] + 1
    return Ranked(sums / counts, places)


def ranking(found: Ranked, pairs: int) -> Metrics:
    """n, queries, map, mrr, mrr_10; queries without a relevant document are left out, as trec_eval
    does."""
    reciprocal = 1 / found.place
    return {
        "n": pairs,
        "queries": len(found.place),
        "map": float(found.precision.mean()),
        "mrr": float(reciprocal.mean()),
        "mrr_10": float(np.where(found.place <= 10, reciprocal, 0).mean()),
    }
