"""Which labels are wrong, by probabilities."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from fleetbert.labelling import confident, regression
from fleetbert.tasks.metrics import softmax


def noisy(seed: int, labels: int = 4, texts: int = 600) -> tuple[np.ndarray, ...]:
    """Vectors [texts, 8], given labels, and which of these are wrong."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, labels, texts)
    vectors = (rng.normal(size=(labels, 8)) * 2)[truth] + rng.normal(size=(texts, 8))
    given, changed = truth.copy(), rng.permutation(texts)[: texts // 10]
    given[changed] = (truth[changed] + rng.integers(1, labels, len(changed))) % labels
    return vectors.astype(np.float32), given, given != truth


@pytest.mark.parametrize("strength", [0.3, 10.0])
def test_logistic_regression_is_that_of_scikit_learn(strength):
    vectors, given, _ = noisy(0)
    ones = np.concatenate([vectors, np.ones((len(vectors), 1))], 1)  # the bias is penalized too
    peer = LogisticRegression(C=strength, max_iter=1000, tol=1e-8, fit_intercept=False)
    weights = regression.fit(vectors, given, 4, strength, rounds=300)
    ours = softmax(regression.logits(vectors, weights))
    np.testing.assert_allclose(ours, peer.fit(ones, given).predict_proba(ones), atol=1e-3)


def test_wrong_labels_are_named_first():
    vectors, given, changed = noisy(1)
    outputs, _ = regression.out_of_sample(vectors, given, 4, np.arange(len(given)) % 5)
    named = confident.wrong(given, softmax(outputs))
    assert changed[named[: changed.sum()]].mean() > 0.85
    assert changed.sum() * 0.7 < len(named) < changed.sum() * 1.6
    assert len(confident.wrong(np.arange(4).repeat(5), np.eye(4).repeat(5, 0))) == 0


@pytest.mark.parametrize("seed", range(3))
def test_the_joint_is_that_of_cleanlab(seed):
    """Where cleanlab is installed, which nothing needs (Apache-2.0 from 2.9 on, before AGPL)."""
    count = pytest.importorskip("cleanlab.count", reason="cleanlab is not installed")
    vectors, given, _ = noisy(seed)
    folds = np.arange(len(given)) % 5
    probabilities = softmax(regression.out_of_sample(vectors, given, 4, folds)[0])
    theirs = count.calibrate_confident_joint(
        count.compute_confident_joint(given, probabilities, calibrate=False), given
    )
    np.testing.assert_allclose(confident.joint(given, probabilities), theirs, atol=1.01)


def test_a_label_that_no_text_is_sure_of_is_trusted():
    probabilities = np.array([[0.9, 0.1, 0.0], [0.8, 0.2, 0.0], [0.7, 0.2, 0.1]])
    joint = confident.joint(np.array([0, 0, 1]), probabilities)
    assert joint.sum(1).tolist() == [2, 1, 0]


def test_of_many_labels_the_likeliest_has_to_be_far_likelier_to_change_one_without_a_look():
    given = np.zeros(2, int)
    five = np.array([[0.16, 0.6, 0.1, 0.1, 0.04], [0.14, 0.6, 0.1, 0.1, 0.06]])
    assert confident.is_sure(given, five).tolist() == [False, True]
    assert confident.is_sure(given, np.array([[0.4, 0.6], [0.6, 0.4]])).tolist() == [True, False]
