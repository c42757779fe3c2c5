"""A finished classifier of another family, with its own tokenizer: imported, it answers as its
network does on the ids that transformers gives, in float32, in int8 and with early exit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import commands
import numpy as np
import paddle
import pytest
import tiny_bert

import fleetbert
from fleetbert import bundle as bundles
from fleetbert.data import tokenizers
from fleetbert.data.batching import SAFE_LENGTHS, round_up
from fleetbert.engines import engine, golden
from fleetbert.models import encoders, sources, task_heads, weights
from fleetbert.models.bert import BertConfig
from fleetbert.models.network import Shape

FILES = Path(__file__).parents[1] / "data" / "tokenizers" / "files"
EXPECTED = json.loads((FILES / "expected.json").read_text())
TEXTS, IDS = zip(
    *(
        (text, ids)
        for text, ids in zip(EXPECTED["texts"], EXPECTED["roberta"])
        if 2 < len(ids) <= 60
        and text.strip()
        and text.replace("\t", "").isprintable()
        and "<mask>" not in text
    )
)
LABELS = tiny_bert.LABELS


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def made(cache, tmp_path_factory) -> tuple[Path, np.ndarray]:
    """A RoBERTa's folder as Hugging Face has it, without tokenizer.json; the network's logits."""
    folder = tmp_path_factory.mktemp("roberta") / "model"
    folder.mkdir()
    for name in ("vocab.json", "merges.txt"):
        shutil.copyfile(FILES / name, folder / name)
    shape: Shape = {
        "vocab_size": 600, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 128, "max_position_embeddings": 128, "type_vocab_size": 2,
        "layer_norm_eps": 1e-5, "pad_token_id": 1, "one_type": True,
    }  # fmt: skip
    paddle.seed(5)
    network = task_heads.build(
        "classification", BertConfig(num_labels=3, initializer_range=0.3, **shape)
    )
    network.eval()
    spec = tokenizers.find(folder)
    source = sources.Source("made", shape, spec, None, encoders.ROBERTA)
    weights.save_folder(network, source, folder, LABELS)
    (folder / "tokenizer.json").unlink()
    logits = [network(paddle.to_tensor([ids]), paddle.zeros([1, len(ids)], "int64")) for ids in IDS]
    return folder, np.concatenate([one.numpy() for one in logits])


@pytest.fixture(scope="module")
def bundle(made, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("imported") / "bundle"
    assert commands.call("import", made[0], "--output", path, "--max-length", 64) == 0
    return path


def logits_of(bundle: Path, variant: str) -> np.ndarray:
    return np.array([one.logits for one in fleetbert.load(bundle, variant=variant)(list(TEXTS))])


def test_it_answers_as_the_network_does(made, bundle):
    np.testing.assert_allclose(logits_of(bundle, "float32"), made[1], atol=1e-4)
    opened = bundles.read(bundle)
    assert (opened.labels, opened.tokenizer.kind) == (LABELS, "tokenizer.json")
    assert opened.tokenizer.settings["one_type"] is True


def check_golden(bundle: Path, variant: str) -> None:
    """Its golden texts are answered one by one as when they were recorded together."""
    opened = bundles.read(bundle)
    kept, run = golden.read(opened, variant), engine.open(opened, variant)
    for ids, logits in zip(kept.ids, kept.logits):
        row = np.full((1, round_up(len(ids), SAFE_LENGTHS)), 1)  # padding
        row[0, : len(ids)] = ids
        np.testing.assert_allclose(run(row, 0 * row, pad_id=1)[0], logits, atol=kept.bound)


def test_golden_texts_are_padded_as_its_texts(bundle):
    check_golden(bundle, "float32")


@pytest.mark.slow
def test_int8_and_early_exit_know_its_padding(made, bundle):
    answers = [LABELS[one] for one in made[1].argmax(1)]
    table = list(zip(TEXTS, answers))
    fleetbert.quantize(
        bundle, method="static", calibration=list(TEXTS[:16]), gate=table, max_drop=1.0
    )
    found = logits_of(bundle, "int8-static")
    error = np.linalg.norm(found - made[1]) / np.linalg.norm(made[1])
    assert error < 0.2
    check_golden(bundle, "int8-static")
    tiny_bert.add_early_exit(bundle, pad_id=1)
    model = fleetbert.load(bundle, variant="early-exit-float32")
    assert {one.exit_layer for one in model(list(TEXTS), speed=0.9)} & {1}
    whole = np.array([one.logits for one in model(list(TEXTS), speed=0.0)])
    np.testing.assert_allclose(whole, made[1], atol=1e-3)
