"""Inputs of layers cut below their calibrated threshold: where it helps, and only there."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from fleetbert.compression import clip
from fleetbert.graph import weights


def chosen(x, threshold):
    """What is chosen for one layer with the inputs x, one row of tokens."""
    weight = np.random.default_rng(1).normal(size=(x.shape[1], 5)).astype(np.float32)
    found = SimpleNamespace(weights={"w": weights.quantize(weight, 1)})
    layers = SimpleNamespace(
        inputs={"w": "x"}, parameters={"w": weight}, run=lambda batches: [{"w": x} for _ in batches]
    )
    return clip.choose(found, layers, [{}], {"w": threshold})


def values(seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (60, 16)).astype(np.float32)


def test_one_outlier_is_cut_for_the_sake_of_all_others():
    x = values()
    assert chosen(x, 1.0) == {}
    x[7, 3] = 40.0
    found = chosen(x, 40.0)["w"]
    assert (found.former, found.threshold) == (40.0, 14.0)
    assert found.error < 0.6 * found.former_error


def test_what_all_tokens_have_is_not_cut():
    x = values()
    x[:, 3] = 40.0
    assert chosen(x, 40.0) == {}


def test_a_token_of_large_values_counts_as_one_token():
    """Its own error is 50 times as large, and still a part of its outputs."""
    x = values()
    x[0] *= 40.0
    assert chosen(x, 40.0)["w"].threshold < 40.0
