"""Rounding up or down: never worse than to the nearest, and much better in all."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetbert.compress import adaround
from fleetbert.graph import weights


def layer(seed: int, inputs: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """A weight [K, N], and inputs [tokens, K] that have much in common, as activations have."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(200, 3)) @ random.normal(size=(3, inputs))
    x += 0.3 * random.normal(size=x.shape)
    weight = random.normal(size=(inputs, outputs))
    return weight.astype(np.float32), x.astype(np.float32)


def coarse(weight: np.ndarray) -> weights.Quantized:
    """Rounded to so few steps that rounding counts."""
    found = weights.quantize(weight, 1)
    scales = found.scales * np.float32(127 / 4)
    integers = np.rint(weight / scales * 127)
    return weights.Quantized(integers.astype(np.int8), scales, 1)


def test_it_lies_between_the_nearest_and_the_best_of_all_ways_to_round():
    """Eight inputs: every way of rounding a column is tried."""
    shares = []
    for seed in range(4):
        weight, x = layer(seed, 8, 5)
        nearest = coarse(weight)
        texts = x.T @ x / len(x)
        learned = adaround.round_weight(weight, nearest, texts)
        step = nearest.scales / 127
        below = np.floor(weight / step)
        for column in range(5):
            ways = np.array(list(itertools.product((0, 1), repeat=8)))
            values = (below[:, column] + ways) * step[column]
            tried = np.square((values - weight[:, column]) @ x.T).mean(1)
            found, former = (
                np.square(x @ (weights.widen(rounded) - weight)[:, column]).mean()
                for rounded in (learned, nearest)
            )
            assert tried.min() <= found * 1.0001 <= former * 1.0002
            shares.append(found / former)
    assert np.mean(shares) < 0.7
    # Where there are more weights there is more to gain.
    weight, x = layer(5, 200, 30)
    nearest, texts = weights.quantize(weight, 1), x.T @ x / len(x)
    learned = adaround.round_weight(weight, nearest, texts)
    found, former = (
        np.square(x @ (weights.widen(rounded) - weight)).mean() for rounded in (learned, nearest)
    )
    assert found < 0.3 * former


@settings(max_examples=15)
@given(st.integers(0, 1000), st.integers(2, 20), st.integers(1, 9))
def test_each_weight_goes_up_or_down_and_no_output_gets_worse(seed, inputs, outputs):
    weight, x = layer(seed, inputs, outputs)
    nearest = weights.quantize(weight, 1)
    texts = x.T @ x / len(x)
    learned = adaround.round_weight(weight, nearest, texts)
    np.testing.assert_array_equal(learned.scales, nearest.scales)
    assert learned.integers.dtype == np.int8
    exact = weight / (nearest.scales / 127)
    assert np.abs(learned.integers - exact).max() < 1 + 1e-3
    assert np.abs(learned.integers).max() <= 127
    before, after = (adaround.errors(weight, found, texts) for found in (nearest, learned))
    assert (after <= before).all()


def test_as_int8_is_what_a_layer_computes_with():
    x = np.array([[0.004, -0.5, 3.0, -3.0]], np.float32)
    expected = np.array([[1, -64, 127, -128]]) / 127  # a half goes to the even one
    np.testing.assert_allclose(adaround.as_int8(x, 1.0), expected, atol=1e-6)
