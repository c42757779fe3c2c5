"""Every `hidden_act`: in the network, its gradient and the float32 program, beside NumPy."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from activation import FORMULAS, SAME, bert, make_bundle, make_network

from fleetbert import bundle as bundles
from fleetbert.compress import from_program
from fleetbert.engines import engine
from fleetbert.engines.alike import random_batch
from fleetbert.models import activations


@pytest.fixture(scope="module", params=list(FORMULAS))
def name(request):
    return request.param


@pytest.fixture(scope="module")
def network(name):
    return make_network(name)


@pytest.fixture(scope="module")
def batch():
    return random_batch(np.random.default_rng(1), (3, 16), 100)


@pytest.fixture(scope="module")
def expected(network, name, batch):
    state = {n: t.numpy() for n, t in network.network.state_dict().items()}
    logits = {n: bert(state, formula, *batch) for n, formula in FORMULAS.items()}
    for other, wrong in logits.items():  # what another function would answer is told apart
        if SAME.get(other, other) != SAME.get(name, name):
            assert np.abs(wrong - logits[name]).max() > 3e-4, other
    return logits[name]


@pytest.fixture(scope="module")
def bundle(network, tmp_path_factory, tiny_vocab):
    return make_bundle(tmp_path_factory.mktemp("activation") / "bundle", network, tiny_vocab)


def answers(path, variant, kind, batch):
    folder = bundles.read(path).folder(variant)
    return engine.open_folder(kind, folder, "cpu", 1)(*batch)


def test_network_and_float32_program(network, bundle, batch, expected, name):
    found = network(*map(paddle.to_tensor, batch)).numpy()
    np.testing.assert_allclose(found, expected, atol=5e-5)
    program = answers(bundle, "float32", engine.FLOAT32, batch)
    np.testing.assert_allclose(program, expected, atol=5e-5)
    source = from_program.open_bundle(bundles.read(bundle), 0.1)
    assert source.shape["hidden_act"] == SAME.get(name, name)


def test_gradients(name):
    x = np.linspace(-4, 4, 33).astype(np.float32)
    tensor = paddle.to_tensor(x, stop_gradient=False)
    activations.get(name)(tensor).sum().backward()
    step = 1e-5
    apart = x[np.abs(x) > 1e-3].astype(np.float64)  # relu has a corner
    slope = (FORMULAS[name](apart + step) - FORMULAS[name](apart - step)) / (2 * step)
    np.testing.assert_allclose(tensor.grad.numpy()[np.abs(x) > 1e-3], slope, atol=1e-5)
