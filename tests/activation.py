"""Every `hidden_act` in NumPy, alone and in a whole BERT, and tiny networks that have them."""

from __future__ import annotations

import math

import numpy as np
from tiny_bert import LABELS, VOCAB

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
    """Logits of a BERT with four heads, in float64. activate: a function, of two layers, or one of
    each layer."""
    activate = [activate] * 2 if callable(activate) else activate
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
    for number, function in enumerate(activate):
        layer = f"bert.encoder.layers.{number}"
        q, k, v = (
            linear(f"{layer}.self_attn.{n}_proj", x).reshape(*ids.shape, 4, -1).swapaxes(1, 2)
            for n in "qkv"
        )
        scores = np.exp(q @ k.swapaxes(2, 3) / math.sqrt(q.shape[-1]) + padding)
        mixed = (scores / scores.sum(-1, keepdims=True) @ v).swapaxes(1, 2).reshape(x.shape)
        x = norm(f"{layer}.norm1", x + linear(f"{layer}.self_attn.out_proj", mixed))
        inner = function(linear(f"{layer}.linear1", x))
        x = norm(f"{layer}.norm2", x + linear(f"{layer}.linear2", inner))
    return linear("classifier", np.tanh(linear("bert.pooler.dense", x[:, 0])))


def make_network(*names, scale=0.3):
    """A tiny classifier with that activation, for `bert`, or with one in each layer. scale: of its
    random weights."""
    import paddle

    from fleetbert.models import activations, task_heads
    from fleetbert.models.bert import BertConfig

    paddle.seed(1)
    shape = BertConfig(
        vocab_size=len(VOCAB), hidden_size=64, num_hidden_layers=max(2, len(names)),
        num_attention_heads=4, intermediate_size=128, initializer_range=scale,
        num_labels=len(LABELS), hidden_act=names[0],
    )  # fmt: skip
    network = task_heads.build("classification", shape)
    for name, layer in zip(names, network.network.bert.encoder.layers):
        layer.activation = activations.get(name)
    network.eval()
    return network
