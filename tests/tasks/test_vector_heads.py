"""Linear layers that are computed from vectors, beside scikit-learn and beside cosines."""

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from fleetbert.tasks import vector_heads

WIDTH, LABELS = 12, 3


def drawn(texts: int, seed: int = 0):
    """Texts around a direction for each label, with their labels, and these directions."""
    random = np.random.default_rng(seed)
    directions = vector_heads.unit(random.normal(size=(LABELS, WIDTH)))
    labels = np.arange(texts) % LABELS
    noise = random.normal(scale=0.25, size=(texts, WIDTH))
    return vector_heads.unit(directions[labels] + noise), labels, directions


def test_a_discriminant_is_scikit_learns():
    vectors, labels, _ = drawn(30)
    peer = LinearDiscriminantAnalysis(
        solver="lsqr", shrinkage=vector_heads.SHRINKAGE, priors=[1 / LABELS] * LABELS
    ).fit(vectors, labels)
    found = vector_heads.of_texts(vectors, labels, LABELS).logits(vectors)
    expected = peer.decision_function(vectors)
    centred, wanted = (some - some.mean(1, keepdims=True) for some in (found, expected))
    factor = (centred * wanted).sum() / (wanted**2).sum()
    assert factor > 0
    np.testing.assert_allclose(centred, factor * wanted, atol=1e-4)
    near = vector_heads.centres(vectors, labels, LABELS, vector_heads.ANSWER_TEMPERATURE)
    spreads = [head.std(axis=1) for head in (found, near.logits(vectors))]
    np.testing.assert_allclose(*[np.sqrt((some**2).mean()) for some in spreads], rtol=1e-5)


@pytest.mark.parametrize("alike", [1, 2])
def test_a_discriminant_of_a_text_a_label_is_finite(alike):
    vectors = np.repeat(np.eye(LABELS, WIDTH), alike, axis=0)
    labels = np.repeat(np.arange(LABELS), alike)
    logits = vector_heads.of_texts(vectors, labels, LABELS).logits(vectors)
    assert np.isfinite(logits).all()
    assert (logits.argmax(1) == labels).all()


def test_names_are_adapted_to_texts():
    """Names that all lean the same way, and towards another label's texts."""
    texts, labels, directions = drawn(300)
    lean = 3 * np.eye(WIDTH)[0]
    names = vector_heads.unit(directions + 0.7 * np.roll(directions, 1, axis=0) + lean)
    by_cosine = ((texts @ names.T).argmax(1) == labels).mean()
    head = vector_heads.of_names(names, texts)
    adapted = (head.logits(texts).argmax(1) == labels).mean()
    assert by_cosine < 0.8
    assert adapted > 0.95
    without = vector_heads.of_names(names, np.zeros((0, WIDTH)))
    assert np.isfinite(without.weight).all()
    assert np.isfinite(vector_heads.of_names(names, texts[:1]).bias).all()


def test_labels_propagate_to_near_texts():
    """Where two texts of each label are known, among many."""
    vectors, labels, _ = drawn(600, seed=2)
    few, others, wanted = vectors[:6], vectors[6:], labels[6:]
    right = [
        (head.logits(others).argmax(1) == wanted).mean()
        for head in (
            vector_heads.of_texts(few, labels[:6], LABELS),
            vector_heads.of_some_texts(few, labels[:6], LABELS, others),
        )
    ]
    assert right[1] > right[0] + 0.05, right
    least = vector_heads.of_some_texts(few[:3], labels[:3], LABELS, others[:1])
    assert np.isfinite(least.logits(others)).all()
