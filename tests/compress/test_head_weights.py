"""`distill.weighting: uncertainty`: what a text counts in a later head, beside NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from fleetbert import config
from fleetbert.compress.distill import heads

TEXTS, WIDTH, LABELS, LAYERS = 24, 6, 3, 3


@pytest.fixture(scope="module")
def examples():
    """Two batches; what heads read tells the answer better with each layer."""
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(TEXTS, LABELS)).astype(np.float32)
    made = []
    for numbers in np.array_split(rng.permutation(TEXTS), 2):
        inputs = []
        for layer in range(LAYERS):
            noise = rng.normal(size=(len(numbers), 2 * WIDTH)).astype(np.float32)
            noise[:, :LABELS] += (layer + 1) * logits[numbers]
            inputs.append(noise)
        real = np.ones((len(numbers), 4), bool)
        made.append(heads.Example(numbers, real, inputs, logits[numbers], 1 / len(numbers)))
    return made


def settings(**changes):
    return config.Exits.model_validate({"epochs": 4, "width": 4, "learning_rate": 0.02, **changes})


def uncertainty(tensors, x):
    inner = np.tanh(x @ tensors["inner.weight"] + tensors["inner.bias"])
    z = inner @ tensors["out.weight"] + tensors["out.bias"]
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    return -(p * np.log(p)).sum(1) / np.log(LABELS)


def test_a_text_counts_as_it_would_reach_the_head(examples, monkeypatch):
    seen = []
    real = heads._weight

    def watched(reach, numbers, seed, epoch):
        seen.append((numbers.tolist(), reach.copy()))
        return real(reach, numbers, seed, epoch)

    monkeypatch.setattr(heads, "_weight", watched)
    trained = list(heads.train(settings(weighting="uncertainty"), examples, None, 0))
    reach = np.ones(TEXTS)
    for layer in range(LAYERS):
        for numbers, reached in seen[8 * layer : 8 * layer + 8]:  # 4 epochs of 2 batches
            np.testing.assert_allclose(reached, reach[numbers], rtol=1e-5)
        for example in examples:
            unsure = uncertainty(trained[layer], example.inputs[layer])
            reach[example.numbers] = np.minimum(reach[example.numbers], unsure)
    assert reach.max() < 1
    assert np.ptp(reach) > 0.1


def test_a_fifth_of_the_texts_counts_whole_others_in_each_epoch():
    numbers = np.arange(5000)
    drawn = [heads._weight(np.zeros(5000, np.float32), numbers, 3, epoch) for epoch in range(2)]
    for weight in drawn:
        assert set(weight.tolist()) == {0.0, 1.0}
        assert weight.mean() == pytest.approx(0.2, abs=0.03)
    assert (drawn[0] != drawn[1]).any()
    rank = numbers[1::2]  # a text counts the same, whichever rank has it
    part = heads._weight(np.zeros(len(rank), np.float32), rank, 3, 0)
    np.testing.assert_array_equal(part, drawn[0][rank])


def test_without_it_all_heads_learn_from_all_texts(examples):
    plain, weighted = (
        list(heads.train(settings(weighting=weighting), examples, None, 0))
        for weighting in ("none", "uncertainty")
    )
    np.testing.assert_array_equal(plain[0]["out.weight"], weighted[0]["out.weight"])
    assert np.abs(plain[1]["out.weight"] - weighted[1]["out.weight"]).max() > 1e-3
