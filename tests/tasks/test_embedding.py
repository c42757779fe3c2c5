"""Vectors: what is asked of pairs, and metrics as SciPy has them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from fleetbert import tasks
from fleetbert.data.read import Example
from fleetbert.errors import UserError
from fleetbert.tasks.embedding import similarities

TASK = tasks.get("embedding").of_width(8)


def unit(random, *shape):
    vectors = random.normal(size=shape).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def test_a_labelled_pair_is_two_texts_and_one_cosine():
    examples = [Example("a", "b", "1.0", 1), Example("c", "d", "2.5", 2)]
    assert TASK.texts(examples) == (["a", "b", "c", "d"], None)
    assert TASK.texts([Example("a", None, None, 1)]) == (["a"], None)
    vectors = unit(np.random.default_rng(0), 4, 8)
    found = TASK.per_example(vectors)
    assert found.shape == (2, 1)
    np.testing.assert_allclose(found[1, 0], vectors[2] @ vectors[3], rtol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_metrics_are_scipys(seed):
    random = np.random.default_rng(seed)
    truth = random.integers(0, 6, 60).astype(np.float32)
    vectors = unit(random, 120, 8)
    cosines = (vectors[::2] * vectors[1::2]).sum(1)
    found = TASK.evaluate(truth, TASK.per_example(vectors), [])
    assert found["n"] == 60
    assert found["spearman"] == pytest.approx(spearmanr(truth, cosines)[0], abs=1e-12)
    assert found["pearson"] == pytest.approx(pearsonr(truth, cosines)[0], abs=1e-6)


@pytest.mark.parametrize("spread", [1.0, 1e-3])
def test_similarities_are_counted_by_hand(spread):
    """Of near pairs, and of texts with the pair before; however near all texts are."""
    random = np.random.default_rng(2)
    middle = random.normal(size=8)
    first = middle + spread * random.normal(size=(50, 8))
    second = first + 0.1 * spread * random.normal(size=(50, 8))
    first, second = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (first, second))
    found = similarities(first, second)
    pairs = {
        "own": [one @ other for one, other in zip(first, second)],
        "others": [one @ other for one, other in zip(first, [second[-1], *second[:-1]])],
    }
    bounds = found["bounds"]
    assert (len(bounds), bounds[0]) == (21, pytest.approx(min(map(min, pairs.values()))))
    for kind, cosines in pairs.items():
        assert sum(found[kind]) == 50
        for low, high, count in zip(bounds[1:-2], bounds[2:-1], found[kind][1:-1]):
            assert count == sum(low <= one < high for one in cosines)


def test_what_is_told():
    vectors = unit(np.random.default_rng(1), 3, 8)
    assert [tuple(tensor) for tensor in TASK.tensors([])] == [
        ("embedding", "FP32", (-1, 8)),
        ("exit_layer", "INT32", (-1,)),
    ]
    assert TASK.tell([], vectors)[0] is vectors
    told = [answer.as_json() for answer in TASK.to_answers([], vectors, None)]
    np.testing.assert_allclose(told[1]["vector"], vectors[1], atol=1e-6)
    lines = TASK.together_in_words(told)
    assert lines[1] == f"similarity of 1 and 3: {vectors[0] @ vectors[2]:.4f}"
    assert TASK.together_in_words(told[:1]) == []
    with pytest.raises(UserError, match="no width"):
        tasks.get("embedding").of_width(None)
