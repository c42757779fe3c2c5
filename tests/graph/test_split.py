"""Units in pieces: what the pieces add up to once each is cut at the threshold."""

from __future__ import annotations

import numpy as np
import pytest
from activation import FORMULAS

from fleetbert.graph import split


@pytest.mark.parametrize("activation", ["gelu_erf", "gelu_tanh", "relu"])
def test_cut_pieces_add_up_to_the_unit(activation):
    x = np.linspace(-9, 27.9, 3000, dtype=np.float32)[:, None]
    formula = FORMULAS["relu" if activation == "relu" else "gelu"]
    exact = formula(x)
    some = split.pieces([1] * 6, 4.0)
    np.testing.assert_allclose(some.lower, [4, 8, 12, 16, 20, 24])
    weight, bias = np.array([[0.5, 0.25]], np.float32), np.array([0.0, 1.0], np.float32)
    # Unit 1 is 0.25 of its input and 1: x.
    found = split.outputs(4 * (x - 1), weight, bias, activation, some)
    np.testing.assert_allclose(found, formula(x - some.lower), atol=1e-3)
    whole = np.minimum(exact, 4) + np.minimum(found, 4).sum(1, keepdims=True)
    assert np.abs(whole - exact).max() < (1e-4 if activation == "relu" else 0.18)
    assert np.abs(np.minimum(exact, 4) - exact).max() > 23  # what a cut alone does


def test_units_are_named_once_for_each_piece():
    some = split.pieces([3, 5, 3, 3], 2.0)
    assert some.units.tolist() == [3, 5, 3, 3]
    assert some.lower.tolist() == [2, 2, 4, 6]
