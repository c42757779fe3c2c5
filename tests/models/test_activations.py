"""Every `hidden_act`: in the network, its gradient and the float32 program, beside NumPy."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import paddle
import pytest
from activation import FORMULAS, SAME, bert, make_network
from tiny_bert import export

from fleetbert.compression import from_program
from fleetbert.engines import engine
from fleetbert.engines.alike import random_batch
from fleetbert.models import activations


@pytest.fixture(scope="module")
def batch():
    return random_batch(np.random.default_rng(1), (3, 16), 100)


@pytest.fixture(scope="module")
def expected(batch):
    """Logits with each function, told apart; the networks' random weights are the same."""
    state = {n: t.numpy() for n, t in make_network("gelu").network.state_dict().items()}
    functions = {name: formula for name, formula in FORMULAS.items() if name not in SAME}
    logits = {name: bert(state, formula, *batch) for name, formula in functions.items()}
    for one, other in combinations(logits.values(), 2):
        assert np.abs(one - other).max() > 3e-4
    return {name: logits[SAME.get(name, name)] for name in FORMULAS}


@pytest.mark.parametrize("name", FORMULAS)
def test_network(name, batch, expected):
    found = make_network(name)(*map(paddle.to_tensor, batch)).numpy()
    np.testing.assert_allclose(found, expected[name], atol=5e-5)


@pytest.mark.parametrize(
    "name",
    [
        "gelu",
        "quick_gelu",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("gelu_new", "relu", "silu", "tanh")),
    ],
)
def test_float32_program(name, batch, expected, tmp_path, tiny_vocab):
    bundle = export(tmp_path / "bundle", make_network(name), tiny_vocab)
    run = engine.open_folder(engine.FLOAT32, bundle.folder("float32"), "cpu", 1)
    np.testing.assert_allclose(run(*batch), expected[name], atol=5e-5)
    assert from_program.open_bundle(bundle, 0.1).shape["hidden_act"] == name


@pytest.mark.parametrize("name", FORMULAS)
def test_gradients(name):
    x = np.linspace(-4, 4, 33).astype(np.float32)
    tensor = paddle.to_tensor(x, stop_gradient=False)
    activations.get(name)(tensor).sum().backward()
    step = 1e-5
    apart = x[np.abs(x) > 1e-3].astype(np.float64)  # relu has a corner
    slope = (FORMULAS[name](apart + step) - FORMULAS[name](apart - step)) / (2 * step)
    np.testing.assert_allclose(tensor.grad.numpy()[np.abs(x) > 1e-3], slope, atol=1e-5)
