"""Temperatures, thresholds and calibration errors, beside SciPy's minimum, all thresholds tried,
and sums bin by bin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from sklearn.metrics import f1_score

from fleetbert import tasks
from fleetbert.tasks import calibration, metrics
from fleetbert.tasks.multi_label.metrics import binary_cross_entropy


@pytest.mark.parametrize("name", ["classification", "multi_label_classification"])
@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.floats(0.2, 5))
def test_the_temperature_has_the_lowest_loss(name, seed, true):
    """Of answers drawn with the probabilities of the logits, which are then multiplied by `true`:
    found again, and no other temperature is better by SciPy."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(500, 3)) * 2
    if name == "classification":
        truth = (logits + rng.gumbel(size=logits.shape)).argmax(1)
        loss = metrics.cross_entropy
    else:
        truth = rng.random(logits.shape) < metrics.sigmoid(logits)
        loss = binary_cross_entropy
    given_logits = (logits * true).astype(np.float32)
    actual = tasks.get(name).metrics.fit(truth, given_logits, ["a", "b", "c"]).temperature
    best = minimize_scalar(lambda log: loss(truth, given_logits / np.exp(log)), (-3, 3), tol=1e-9)
    assert actual == pytest.approx(np.exp(best.x), rel=1e-3)
    assert actual == pytest.approx(true, rel=0.35)


def test_where_all_is_right_nothing_is_fitted():
    truth = np.array([0, 1])
    actual = tasks.get("classification").metrics.fit(truth, np.eye(2, dtype=np.float32), ["a", "b"])
    assert actual == (1.0, {})


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.booleans())
def test_no_threshold_has_a_better_f1(seed, texts, equal):
    rng = np.random.default_rng(seed)
    scores = rng.random(texts)
    if equal:
        scores = scores.round(1)
    truth = rng.random(texts) < scores
    actual = calibration.fit_threshold(truth, scores)
    assert 0 <= actual <= 1
    if not truth.any():
        assert actual == 0.5
        return
    tried = [f1_score(truth, scores > one, zero_division=0) for one in (-1, *scores)]
    if actual > 0 or (scores > 0).all():
        assert f1_score(truth, scores > actual) == pytest.approx(max(tried))


@given(st.integers(0, 2**32 - 1), st.integers(1, 200))
def test_the_error_is_that_of_the_bins(seed, answers):
    rng = np.random.default_rng(seed)
    confidence, right = rng.random(answers), rng.random(answers) < 0.5
    confidence[0] = 1.0
    expected = 0.0
    for number in range(15):
        last = number == 14
        inside = (confidence >= number / 15) & ((confidence < (number + 1) / 15) | last)
        if inside.any():
            apart = abs(confidence[inside].mean() - right[inside].mean())
            expected += apart * inside.sum() / answers
    assert calibration.calibration_error(confidence, right) == pytest.approx(expected)
    assert calibration.reliability(confidence, right)[:, 2].sum() == answers


def test_thresholds_decide_which_labels_a_text_has():
    plain = tasks.get("multi_label_classification")
    task = plain.with_thresholds({"a": 0.2})
    outputs = np.array([[-1.0, -1.0], [-2.0, 1.0]], np.float32)  # of 0.27 and 0.12, 0.73
    for known, labels in ((task, [["a"], ["b"]]), (plain, [[], ["b"]])):
        answers = known.answer.to_answers(["a", "b"], outputs, None)
        assert [one.labels for one in answers] == labels
    assert task.answer.tell(["a", "b"], outputs)[0] == ['["a"]', '["b"]']
    truth = np.array([[True, False], [False, True]])
    assert task.metrics.evaluate(truth, outputs, ["a", "b"])["macro_f1"] == 1.0
    assert plain.metrics.evaluate(truth, outputs, ["a", "b"])["macro_f1"] == 0.5
