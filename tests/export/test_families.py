"""One encoder, written in the files of each family, imported and quantized: int8 and bfloat16 lose
no more of any of them than of BERT, and an early exit knows its padding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import paddle
import pytest
import tiny_bert
from halves import needs_bfloat16

import fleetbert
from fleetbert.data import tokenizers
from fleetbert.export import onnx
from fleetbert.models import encoders, sources, task_heads, weights
from fleetbert.models.bert import BertConfig
from fleetbert.models.network import Shape

SHAPE: Shape = {
    "vocab_size": len(tiny_bert.VOCAB), "hidden_size": 64, "num_hidden_layers": 4,
    "num_attention_heads": 4, "intermediate_size": 128, "max_position_embeddings": 64,
    "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0,
}  # fmt: skip
pytestmark = pytest.mark.slow
RNG = np.random.default_rng(0)
TEXTS = [" ".join(RNG.choice(tiny_bert.WORDS, RNG.integers(2, 30))) for _ in range(96)]
ONE_TYPE = ("roberta", "distilbert")
MORE = ("roberta", "ernie", "electra")


def write(family: str, folder: Path) -> Path:
    """The encoder of `tiny_bert`'s kind in the family's own files, of 4 layers."""
    vocab = folder.with_suffix(".txt")
    vocab.write_text("\n".join(tiny_bert.VOCAB) + "\n", encoding="utf-8")
    shape = {**SHAPE, "hidden_act": "relu" if family == "ernie" else "gelu"}
    known = encoders.families[family]
    if family == "albert":
        shape["embedding_size"] = 32
    if family in ONE_TYPE:
        shape["one_type"] = True
    paddle.seed(2)
    network = task_heads.build(
        "classification", BertConfig(num_labels=3, initializer_range=0.15, **shape)
    )
    network.eval()
    source = sources.Source("made", shape, tokenizers.of_vocab(vocab, True), None, known)
    weights.save_folder(network, source, folder, tiny_bert.LABELS)
    return folder


def error(family: str, folder: Path, method: str = "static") -> float:
    """Of the variant's logits, relative to float32's."""
    source = write(family, folder / family)
    bundle = fleetbert.import_model(source, folder / f"{family}-bundle", max_length=64)
    answers = fleetbert.load(bundle)(TEXTS)
    made = fleetbert.quantize(
        bundle, method=method, calibration=TEXTS[:48], max_drop=1.0,
        gate=[(text, one.label) for text, one in zip(TEXTS, answers)],
    )  # fmt: skip
    exact = np.array([one.logits for one in answers])
    found = np.array([one.logits for one in fleetbert.load(bundle, variant=made.name)(TEXTS)])
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


@pytest.fixture(scope="module")
def of_bert(tmp_path_factory) -> float:
    return error("bert", tmp_path_factory.mktemp("families"))


@pytest.mark.parametrize(
    ("family", "most"),
    # Their first layers of the head have ReLU and GELU, which keep the error that tanh flattens.
    [
        ("ernie", 1.01),
        ("distilbert", 1.25),
        ("albert", 1.25),
        pytest.param("roberta", 1.01, marks=pytest.mark.endurance),
        pytest.param("electra", 1.25, marks=pytest.mark.endurance),
    ],
)
def test_int8_loses_no_more_than_of_bert(family, most, of_bert, tmp_path):
    found = error(family, tmp_path)
    assert 0 < found <= most * of_bert, (found, of_bert)


def test_projected_embeddings_are_exported_to_onnx(tmp_path):
    bundle = fleetbert.import_model(write("albert", tmp_path / "m"), tmp_path / "b", max_length=64)
    onnx.export_onnx(bundle)
    exact, found = (fleetbert.load(bundle, variant)(TEXTS) for variant in ("float32", "onnx"))
    for one, other in zip(exact, found):
        np.testing.assert_allclose(one.logits, other.logits, atol=1e-4)


@needs_bfloat16
@pytest.mark.parametrize(
    "family",
    ["bert", "distilbert", *(pytest.param(n, marks=pytest.mark.endurance) for n in MORE)],
)
def test_bfloat16_changes_logits_by_a_hundredth_at_most(family, tmp_path):
    assert 1e-4 < error(family, tmp_path, "bfloat16") < 0.01
