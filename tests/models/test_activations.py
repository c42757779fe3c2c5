"""Every `hidden_act`: in the network, its gradient and the float32 program, beside NumPy."""

from __future__ import annotations

import math

import numpy as np
import paddle
import pytest
from tiny_bert import LABELS, VOCAB

from fleetbert import bundle as bundles
from fleetbert.compat.paddlenlp import BertConfig
from fleetbert.compress import from_program
from fleetbert.data.tokenizers import of_vocab
from fleetbert.engines import engine
from fleetbert.engines.alike import random_batch
from fleetbert.export.program import export_bundle
from fleetbert.models import activations, heads

erf = np.vectorize(math.erf)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu_new(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


FORMULAS = {
    "gelu": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    "gelu_new": gelu_new,
    "gelu_pytorch_tanh": gelu_new,
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * sigmoid(x),
    "swish": lambda x: x * sigmoid(x),
    "tanh": np.tanh,
    "quick_gelu": lambda x: x * sigmoid(1.702 * x),
}
SAME = {"gelu_pytorch_tanh": "gelu_new", "swish": "silu"}  # one function, two names


def bert(state, activate, ids, types):
    """Logits of a two-layer BERT with four heads, in float64."""
    state = {name: array.astype(np.float64) for name, array in state.items()}

    def linear(name, x):
        return x @ state[f"{name}.weight"] + state[f"{name}.bias"]

    def norm(name, x):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-12)
        return x * state[f"{name}.weight"] + state[f"{name}.bias"]

    table = {n: state[f"bert.embeddings.{n}_embeddings.weight"] for n in
             ("word", "position", "token_type")}  # fmt: skip
    x = table["word"][ids] + table["position"][: ids.shape[1]] + table["token_type"][types]
    x = norm("bert.embeddings.layer_norm", x)
    padding = np.where(ids == 0, -1e4, 0)[:, None, None]
    for layer in ("bert.encoder.layers.0", "bert.encoder.layers.1"):
        q, k, v = (
            linear(f"{layer}.self_attn.{n}_proj", x).reshape(*ids.shape, 4, -1).swapaxes(1, 2)
            for n in "qkv"
        )
        scores = np.exp(q @ k.swapaxes(2, 3) / math.sqrt(q.shape[-1]) + padding)
        mixed = (scores / scores.sum(-1, keepdims=True) @ v).swapaxes(1, 2).reshape(x.shape)
        x = norm(f"{layer}.norm1", x + linear(f"{layer}.self_attn.out_proj", mixed))
        inner = activate(linear(f"{layer}.linear1", x))
        x = norm(f"{layer}.norm2", x + linear(f"{layer}.linear2", inner))
    return linear("classifier", np.tanh(linear("bert.pooler.dense", x[:, 0])))


@pytest.fixture(scope="module", params=list(FORMULAS))
def name(request):
    return request.param


@pytest.fixture(scope="module")
def network(name):
    paddle.seed(1)
    shape = BertConfig(
        vocab_size=len(VOCAB), hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=128, initializer_range=0.3, num_labels=len(LABELS), hidden_act=name,
    )  # fmt: skip
    network = heads.build("classification", shape)
    network.eval()
    return network


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
    path = tmp_path_factory.mktemp("activation") / "bundle"
    export_bundle(
        path, network, task="classification", labels=LABELS, max_length=64,
        tokenizer=of_vocab(tiny_vocab, True),
    )  # fmt: skip
    return path


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
