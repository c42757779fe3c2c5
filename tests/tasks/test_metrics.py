"""A classifier's figures beside scikit-learn's."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    confusion_matrix,
    f1_score,
    label_ranking_average_precision_score,
    log_loss,
    precision_recall_fscore_support,
    roc_auc_score,
)

from fleetbert import tasks
from fleetbert.tasks import metrics
from fleetbert.tasks.classification import metrics as classes
from fleetbert.tasks.ctr import metrics as clicks
from fleetbert.tasks.embedding import metrics as vectors
from fleetbert.tasks.multi_label import metrics as several
from fleetbert.tasks.ranking import metrics as rankings
from fleetbert.tasks.regression import metrics as correlations


def answers(seed: int, texts: int, labels: int, spread: float = 3.0):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, labels, texts)
    return truth, (rng.normal(size=(texts, labels)) * spread).astype(np.float32)


@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(2, 7), st.floats(0.1, 30))
def test_all_figures_are_scikit_learns(seed, texts, n_labels, spread):
    truth, logits = answers(seed, texts, n_labels, spread)
    labels = [f"label {n}" for n in range(n_labels)]
    numbers = np.arange(n_labels)
    actual = classes.classification(truth, logits, labels)
    guessed = logits.argmax(1)
    exact = logits.astype(np.float64)
    chances = np.exp(exact - exact.max(1, keepdims=True))
    chances /= chances.sum(1, keepdims=True)

    assert actual["n"] == texts
    assert actual["labels"] == labels
    assert actual["accuracy"] == pytest.approx(accuracy_score(truth, guessed))
    assert actual["confusion"] == confusion_matrix(truth, guessed, labels=numbers).tolist()
    assert actual["macro_f1"] == pytest.approx(
        f1_score(truth, guessed, average="macro", zero_division=0)
    )
    assert actual["macro_f1_classes"] == len({*truth.tolist(), *guessed.tolist()})
    assert actual["macro_f1_all"] == pytest.approx(
        f1_score(truth, guessed, labels=numbers, average="macro", zero_division=0)
    )
    if chances.min() > 1e-15:  # scikit-learn clips smaller ones
        assert actual["loss"] == pytest.approx(log_loss(truth, chances, labels=numbers))
    rows = precision_recall_fscore_support(truth, guessed, labels=numbers, zero_division=0)
    for label, *row in zip(labels, *rows):
        scores = actual["classes"][label]
        assert [scores[k] for k in ("precision", "recall", "f1", "support")] == pytest.approx(row)


def test_large_and_equal_logits():
    large = np.array([[1e4, -1e4], [1e4, -1e4]], np.float32)
    assert metrics.cross_entropy(np.array([0, 1]), large) == pytest.approx(1e4)
    assert metrics.cross_entropy(np.array([0, 2]), np.zeros((2, 4))) == pytest.approx(np.log(4))
    chances = metrics.softmax(np.array([[1000.0, 0.0], [-1000.0, -1000.0]], np.float32))
    assert chances.tolist() == [[1.0, 0.0], [0.5, 0.5]]


def test_many_labels_list_the_pairs_that_occur():
    """Beside the matrix of scikit-learn, of 51 labels of which some do not occur."""
    n_labels = metrics.MOST_LABELS + 1
    truth, logits = answers(3, 400, n_labels)
    truth[truth >= 48] = 5
    labels = [f"label {n}" for n in range(n_labels)]
    measures = classes.classification(truth, logits, labels)
    assert "confusion" not in measures
    guessed = logits.argmax(1)
    matrix = confusion_matrix(truth, guessed, labels=np.arange(n_labels))
    np.fill_diagonal(matrix, 0)
    assert measures["confused_pairs"] == np.count_nonzero(matrix) == len(measures["confusions"])
    counts = [texts for _, _, texts in measures["confusions"]]
    assert counts == sorted(matrix[matrix > 0].tolist(), reverse=True)
    for true, answer, texts in measures["confusions"]:
        assert matrix[labels.index(true), labels.index(answer)] == texts
    assert sorted(measures["classes"]) == sorted(labels)
    occurring = [row["f1"] for row in measures["classes"].values() if row["support"]]
    assert occurring == sorted(occurring)
    assert [row["support"] for row in measures["classes"].values()][-3:] == [0, 0, 0]
    counts = [measures["classes"][label]["support"] for label in labels]
    assert counts == np.bincount(truth, minlength=n_labels).tolist()


def test_nothing_grows_with_the_square_of_7051_labels():
    n_labels, texts = 7051, 2000
    truth = np.arange(texts) * 3 % n_labels
    logits = np.zeros((texts, n_labels), np.float32)
    logits[np.arange(texts), truth[::-1]] = 1.0
    labels = [f"label {n}" for n in range(n_labels)]
    tracemalloc.start()
    try:
        measures = classes.classification(truth, logits, labels)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 150e6  # a matrix of the labels takes 398 MB, all logits as float64 113 MB
    assert measures["confused_pairs"] == 2000
    assert len(measures["confusions"]) == classes.MOST_CONFUSIONS
    assert len(json.dumps(measures)) < 1.2e6
    assert measures["loss"] == pytest.approx(np.log(np.e + n_labels - 1))


def test_the_loss_of_many_texts_is_that_of_all_at_once(monkeypatch):
    truth, logits = answers(1, 50, 7)
    whole = metrics.cross_entropy(truth, logits)
    monkeypatch.setattr(metrics, "BLOCK", 3 * 7)
    assert metrics.cross_entropy(truth, logits) == pytest.approx(whole, rel=1e-12)


@given(st.integers(0, 2**32 - 1), st.integers(2, 80), st.integers(1, 6))
def test_auc_and_log_loss_are_scikit_learns(seed, rows, levels):
    """With equal scores, of which there are many where there are few levels."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 2, rows)
    truth[:2] = 0, 1
    logits = np.where(
        rng.random(rows) < 0.5, rng.integers(0, levels, rows), rng.normal(size=rows) * 3
    ).astype(np.float32)
    evaluate = tasks.get("ctr").metrics.evaluate
    actual = evaluate(truth.astype(np.float32), logits[:, None], [])
    assert actual["n"] == rows
    assert actual["auc"] == pytest.approx(roc_auc_score(truth, logits), abs=1e-9)
    chances = 1 / (1 + np.exp(-logits.astype(np.float64)))
    assert actual["loss"] == pytest.approx(log_loss(truth, chances), abs=1e-6)


def test_without_both_answers_there_is_no_auc():
    with pytest.raises(ValueError, match="no AUC"):
        clicks.auc(np.ones(3), np.arange(3.0))


numbers = st.floats(-1e6, 1e6, width=32)


@given(st.lists(st.tuples(numbers, numbers | st.sampled_from([0.0, 1.0])), min_size=2))
def test_correlations_are_scipys(pairs):
    truth, values = np.array(pairs, np.float32).T
    actual = correlations.regression(truth, values)
    assert actual["mse"] == pytest.approx(((truth - values.astype(np.float64)) ** 2).mean())
    if np.ptp(truth) and np.ptp(values):
        wide = truth.astype(np.float64), values.astype(np.float64)
        assert actual["spearman"] == pytest.approx(stats.spearmanr(*wide).statistic, abs=1e-9)
        assert actual["pearson"] == pytest.approx(stats.pearsonr(*wide).statistic, abs=1e-7)
    else:
        assert actual["spearman"] == actual["pearson"] == 0.0


@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 7), st.floats(0, 1))
def test_figures_of_several_labels_are_scikit_learns(seed, texts, n_labels, share):
    rng = np.random.default_rng(seed)
    truth = rng.random((texts, n_labels)) < share
    logits = rng.normal(size=(texts, n_labels)).astype(np.float32) * 3
    labels = [f"label {n}" for n in range(n_labels)]
    guessed = logits > 0
    actual = several.multi_label(truth, logits, guessed, labels)
    for average in ("macro", "micro"):
        # scikit-learn takes one column for one class, and would count the other one too
        flat = (truth[:, 0], guessed[:, 0]) if n_labels == 1 else (truth, guessed)
        kind = {"average": "binary"} if n_labels == 1 else {"average": average}
        expected = f1_score(*flat, zero_division=0, **kind)
        assert actual[f"{average}_f1"] == pytest.approx(expected, abs=1e-12)
    assert actual["subset_accuracy"] == pytest.approx((truth == guessed).all(1).mean())
    chances = 1 / (1 + np.exp(-logits.astype(np.float64)))
    assert metrics.sigmoid(logits) == pytest.approx(chances, abs=1e-12)
    likely = np.where(truth, chances, 1 - chances)
    assert actual["loss"] == pytest.approx(-np.log(likely).mean())
    for number, scores in enumerate(actual["classes"].values()):
        precision, recall, _, _ = precision_recall_fscore_support(
            truth[:, number], guessed[:, number], average="binary", zero_division=0
        )
        assert (scores["precision"], scores["recall"]) == pytest.approx((precision, recall))


@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 5))
def test_average_precision_is_scikit_learns(seed, texts, levels):
    rng = np.random.default_rng(seed)
    truth = rng.random(texts) < 0.4
    truth[rng.integers(texts)] = True
    scores = rng.integers(0, levels + 1, texts).astype(np.float32)
    drawn = metrics.curves_of_labels(truth[:, None], scores[:, None] / levels, ["film"])["film"]
    assert drawn["average"] == pytest.approx(average_precision_score(truth, scores))
    for threshold in (0, 50, 100):  # of thresholds from 0 to 1 by hundredths
        chosen = scores / levels >= threshold / 100
        counts = [(chosen & truth).sum(), (chosen & ~truth).sum()]
        assert drawn["by_threshold"][threshold] == counts


def test_labels_are_ordered_by_what_to_look_at_first():
    figures = {"none": (0.0, 0), "rare": (0.5, 2), "good": (0.9, 5), "frequent": (0.5, 7)}
    classes = {name: {"f1": f1, "support": texts} for name, (f1, texts) in figures.items()}
    names = [name for name, _ in sorted(classes.items(), key=metrics.worst_first)]
    assert names == ["frequent", "rare", "good", "none"]


def test_curves_are_of_the_most_frequent_labels_that_occur():
    labels = [f"label {number}" for number in range(14)]
    truth = np.arange(20)[:, None] < np.arange(14)  # as many texts as the label's number
    scores = np.random.default_rng(0).random(truth.shape)
    assert list(metrics.curves_of_labels(truth, scores, labels)) == labels[:1:-1]
    assert list(metrics.curves_of_labels(truth[:, :3], scores[:, :3], labels)) == labels[2:0:-1]


@given(st.integers(0, 2**32 - 1), st.integers(1, 80), st.integers(1, 9), st.integers(1, 40))
def test_ranking_is_scikit_learns_for_each_query(seed, pairs, queries, values):
    """Few values make ties: among them scikit-learn has no order, and MRR has the worst."""
    rng = np.random.default_rng(seed)
    relevant = rng.random(pairs) < rng.random()
    query, scores = rng.integers(0, queries, pairs), rng.integers(0, values, pairs) / 8
    precisions, places = [], []
    for one in range(queries):
        true, given = relevant[query == one], scores[query == one]
        if true.any():
            precisions.append(average_precision_score(true, given))
            best = given[true].max()
            places.append(1 + np.count_nonzero(~true & (given >= best)))
    actual = rankings.ranked(relevant, query.astype(np.float32), scores.astype(np.float32))
    assert actual.precision.tolist() == pytest.approx(precisions)
    assert actual.place.tolist() == places
    if places:
        answered = rankings.ranking(actual, pairs)
        assert (answered["n"], answered["queries"]) == (pairs, len(places))
        assert answered["map"] == pytest.approx(np.mean(precisions))
        assert answered["mrr"] == pytest.approx(np.mean([1 / place for place in places]))
        firsts = [1 / place if place <= 10 else 0 for place in places]
        assert answered["mrr_10"] == pytest.approx(np.mean(firsts))


@given(st.integers(0, 2**32 - 1), st.integers(2, 30), st.integers(1, 4), st.sampled_from([1, 64]))
def test_mrr_of_vectors_is_scikit_learns(seed, pairs, levels, block):
    """Of one right document a query: few levels make ties, of which both take the worst place.
    Whatever comes after the tenth counts nothing; in blocks of any size."""
    rng = np.random.default_rng(seed)
    first, second = rng.integers(-levels, levels + 1, (2, pairs, 3)).astype(np.float32)
    scores = first @ second.T
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectors, "BLOCK", block)
        whole, ten = (vectors.mrr(first, second, most) for most in (pairs, 10))
    expected = label_ranking_average_precision_score(np.eye(pairs), scores)
    assert whole == pytest.approx(expected)
    places = (scores >= np.diag(scores)[:, None]).sum(1)
    assert ten == pytest.approx(np.where(places <= 10, 1 / places, 0).mean())
