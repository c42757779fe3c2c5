"""Heads in NumPy beside the same ones in Paddle, which were trained."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from fleetbert import config as configs
from fleetbert.compression.distill import exit_training
from fleetbert.data.packing import pack, packed_layout
from fleetbert.engines import exit_heads

HALVES = ("fastbert", "tokens")  # what these read is kept in half for training


@pytest.mark.parametrize("kind", sorted(exit_heads.KINDS))
def test_numpy_answers_as_paddle_does(kind):
    random = np.random.default_rng(0)
    hidden = random.normal(size=(7, 16, 64)).astype(np.float32)
    lengths = random.integers(3, 17, 7)
    real = np.arange(16) < lengths[:, None]
    paddle.seed(3)
    read = exit_training.read_by(kind, hidden, real).astype(np.float32)
    layer = exit_training.KINDS[kind](2, read.shape[-1], 32, 3)
    layer.eval()
    inputs = paddle.to_tensor(np.stack([0 * read, read]))
    expected = layer(inputs, paddle.to_tensor(real)).numpy()[1]
    tensors = exit_training.by_head(layer)[1]
    at = packed_layout(lengths)
    found = exit_heads.KINDS[kind](tensors, pack(hidden[real], at), at)
    if kind == "tokens":  # no head learns of the special ones, the first and the last
        found = np.concatenate([one[1:-1] for one in found])
    np.testing.assert_allclose(found, expected, atol=2e-3 if kind in HALVES else 1e-5)
    assert found.dtype == np.float32
    assert np.ptp(expected, axis=0).max() > 0.05


@pytest.mark.parametrize("shape", [(9, 12), (1, 1), (1, 12), (1, 131)])
def test_pool_is_the_first_token_and_the_mean_of_all(shape):
    random = np.random.default_rng(5)
    hidden = random.normal(size=(*shape, 8)).astype(np.float32)
    lengths = random.integers(1, shape[1], shape[0]) if shape[0] > 1 else np.array([shape[1]])
    real = np.arange(shape[1]) < lengths[:, None]
    at = packed_layout(lengths)
    found = exit_heads.pool(pack(hidden[real], at), at)
    means = [row[chosen].mean(0) for row, chosen in zip(hidden, real)]
    np.testing.assert_allclose(found, np.concatenate([hidden[:, 0], means], 1), atol=1e-6)
    assert found.dtype == np.float32


@pytest.mark.parametrize("asked, expected", [(None, 64), (30, 30)])
def test_heads_are_as_wide_as_asked_or_a_sixth_of_the_model(asked, expected):
    random = np.random.default_rng(7)
    read, logits = random.normal(size=(2, 2 * 384)), random.normal(size=(2, 3))
    example = exit_training.Example(
        np.arange(2), np.ones((2, 4), bool), read[None].astype(np.float32), logits, 1
    )
    settings = configs.Exits(epochs=1, width=asked)
    network = exit_training.Exits(settings, [example], 0, "pooled", "entropy", None).network
    [tensors] = exit_training.by_head(network)
    assert tensors["inner.weight"].shape == (2 * 384, expected)
    assert tensors["out.weight"].shape == (expected, 3)
