"""A text whose own ids hold the token that rows are padded with, beside the network that is given
the mask of its texts by their lengths."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
import shapes
import tiny_bert

from fleetbert import bundle as bundles
from fleetbert.compat import processor
from fleetbert.data import ragged
from fleetbert.data.ragged import Texts
from fleetbert.engines import engine

LENGTHS = np.array([9, 30, 16, 2, 30, 24])


def make_texts() -> Texts:
    """Pairs and texts, with the pad id at some places, among them the first and the last."""
    random = np.random.default_rng(0)
    texts = Texts(random.integers(1, shapes.VOCAB_SIZE, LENGTHS.sum()), LENGTHS, LENGTHS // 2 + 1)
    for number, ids in enumerate(texts.split()):
        ids[[[3, 4], [-1], [0], [1], [], [5, -2, -1]][number]] = 0
    return texts


def by_network(texts: Texts, masked: bool) -> np.ndarray:
    """Logits of the network of `tiny_bundle`; masked: by the mask that it makes of ids."""
    network = tiny_bert.make_network()
    network.eval()
    ids, types, mask = map(paddle.to_tensor, ragged.pad(texts, 0))
    seen = (ids != 0).astype("int64") if masked else mask
    added = (1 - seen.astype("float32"))[:, None, None] * -1e4
    with paddle.no_grad():
        network.network.bert.padding_mask = lambda _: added
        return network(ids, types).numpy()


@pytest.fixture(scope="module")
def bundle(int8_bundle, tmp_path_factory):
    """With all kinds that this machine runs."""
    made = shapes.add_bfloat16(int8_bundle.root, tmp_path_factory.mktemp("bfloat16"))
    tiny_bert.add_early_exit(made.root)
    return bundles.read(made.root)


@pytest.mark.parametrize(
    "variant", ["float32", "onnx", "early-exit-float32", "bfloat16", "int8-static"]
)
def test_it_is_a_token_as_others(bundle, variant):
    if variant == "bfloat16" and not processor.bfloat16():
        pytest.skip("this processor has no bfloat16")
    if variant == "onnx":
        pytest.importorskip("onnxruntime")
    texts = make_texts()
    expected, masked = by_network(texts, masked=False), by_network(texts, masked=True)
    opened = engine.open(bundle, variant, threads=1)
    found = opened.run(texts, 0.0)
    alone = [opened.run(text, 0.0) for _, text in texts.parts(np.arange(6)[:, None])]
    for outputs in (found, np.concatenate(alone)):
        error = np.abs(outputs - expected)
        if "int8" in variant:  # which is coarse, for a network of random weights
            assert error.mean() < np.abs(outputs - masked).mean() / 2
        else:
            assert error.max() < (0.1 if variant == "bfloat16" else 1e-4)
    assert (np.abs(masked - expected).max(1) > 0.01).tolist() == [True] * 4 + [False, True]
