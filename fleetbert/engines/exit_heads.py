"""The classifiers after inner layers of an early-exit variant, in NumPy.

`heads.safetensors` has the tensors of each as `<layer>.<name>`, layers counted from 1.
Shapes: states float32 [tokens, width], what the layer gives of the tokens of all texts in packed
rows, which `packing.PackedLayout` describes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Mapping

import numpy as np
from safetensors.numpy import load_file, save_file

from fleetbert.data.packing import PackedLayout, padded_index
from fleetbert.tasks.answer import by_text
from fleetbert.tasks.vector_heads import unit

NAME = "heads.safetensors"
Tensors = Mapping[str, np.ndarray]


def pool(states: np.ndarray, layout: PackedLayout) -> np.ndarray:
    """[CLS] and the mean over a text's tokens side by side: float32 [texts, 2 * width]."""
    width = states.shape[1]
    both = np.empty((len(layout.lengths), 2 * width), np.float32)
    # np.add.reduceat goes down each column by itself and takes four times as long
    for row, begin, count in zip(both, layout.first.tolist(), layout.lengths.tolist()):
        row[:width] = states[begin]
        np.add.reduce(states[begin : begin + count], 0, out=row[width:])
    both[:, width:] /= layout.lengths[:, None]
    return both


def pooled(tensors: Tensors, states: np.ndarray, layout: PackedLayout) -> np.ndarray:
    """Logits [texts, labels] of two linear layers, tanh between them, on `pool`."""
    return _two_layers(tensors, pool(states, layout))


def tokens(tensors: Tensors, states: np.ndarray, layout: PackedLayout) -> np.ndarray:
    """The same of each token's state: an array of objects [texts], each [own tokens, labels]."""
    return by_text(_two_layers(tensors, states[layout.places]), layout.lengths)


def vector(tensors: Tensors, states: np.ndarray, layout: PackedLayout) -> np.ndarray:
    """Vectors [texts, width] of length 1: one linear layer on `pool`."""
    return unit(pool(states, layout) @ tensors["out.weight"] + tensors["out.bias"])


def _two_layers(tensors: Tensors, x: np.ndarray) -> np.ndarray:
    outputs: np.ndarray = np.tanh(x @ tensors["inner.weight"] + tensors["inner.bias"])
    return outputs @ tensors["out.weight"] + tensors["out.bias"]


def fastbert(tensors: Tensors, states: np.ndarray, layout: PackedLayout) -> np.ndarray:
    """Logits [texts, labels] of FastBERT's student classifier (Liu et al. 2020, section 3.1):
    narrow, attend, and classify [CLS], whose answer alone is computed."""
    x = np.tanh(states @ tensors["narrow.weight"] + tensors["narrow.bias"])
    index, real = padded_index(layout)
    keys = _split((x @ tensors["key.weight"] + tensors["key.bias"])[index])
    values = _split((x @ tensors["value.weight"] + tensors["value.bias"])[index])
    query = _split(x[layout.first[:, None]] @ tensors["query.weight"] + tensors["query.bias"])
    scores = np.matmul(query, keys.transpose(0, 1, 3, 2)) / np.sqrt(query.shape[-1])
    scores = np.where(real[:, None, None], scores, -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = np.matmul(scores / scores.sum(-1, keepdims=True), values)[:, :, 0]
    inner = mixed.reshape(len(mixed), -1) @ tensors["mix.weight"] + tensors["mix.bias"]
    inner = np.tanh(inner @ tensors["inner.weight"] + tensors["inner.bias"])
    return (inner @ tensors["out.weight"] + tensors["out.bias"]).astype(np.float32)


# FastBERT's published code: two attention heads in the student classifier.
ATTENTION_HEADS = 2


def _split(x: np.ndarray) -> np.ndarray:
    """[texts, length, width] → [texts, heads, length, width / heads]."""
    texts, length, width = x.shape
    parts = x.reshape(texts, length, ATTENTION_HEADS, width // ATTENTION_HEADS)
    return parts.transpose(0, 2, 1, 3)


KINDS: dict[str, Callable[[Tensors, np.ndarray, PackedLayout], np.ndarray]] = {
    "pooled": pooled,
    "fastbert": fastbert,
    "tokens": tokens,
    "vector": vector,
}


def save(folder: Path, heads: Mapping[int, Tensors]) -> None:
    """Write the heads, by the layer that each follows."""
    tensors = {
        f"{layer}.{name}": np.ascontiguousarray(array, np.float32)
        for layer, head in heads.items()
        for name, array in head.items()
    }
    save_file(tensors, folder / NAME)


def load(folder: Path) -> dict[int, dict[str, np.ndarray]]:
    """What `save` wrote."""
    loaded: dict[int, dict[str, np.ndarray]] = {}
    for full, array in load_file(folder / NAME).items():
        layer, _, name = full.partition(".")
        loaded.setdefault(int(layer), {})[name] = array
    return loaded
