"""An encoder becomes a bundle of vectors: pooled as its folder says, of length 1, the same in every
variant and beside every other text."""

from __future__ import annotations

import itertools
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
from fleetbert.compat import processor
from fleetbert.data import tokenizers
from fleetbert.engines import answer
from fleetbert.models import sources

RANDOM = np.random.default_rng(0)
TEXTS = [
    " ".join(RANDOM.choice(tiny_bert.WORDS, length)) for length in (1, 30, 2, 7, 55, 3, 9, 12, 25)
]
HALF = ("bfloat16",) if processor.bfloat16() else ()  # variants that this processor can run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A BERT's folder as Hugging Face has it, and the states of its last layer for each text."""
    folder = tmp_path_factory.mktemp("encoder") / "model"
    network = tiny_bert.write_encoder(folder, "mlm", 0.3)
    spec = tokenizers.of_vocab(folder.parent / "vocab.txt", True)
    ids = tokenizers.open(spec).encode(TEXTS, None, 64).ids
    bert = network.network.bert
    tensors = [paddle.to_tensor([one], "int64") for one in ids]
    states = [bert(one, paddle.zeros_like(one)).numpy()[0] for one in tensors]
    return folder, states


def expected(states, pooling: str) -> np.ndarray:
    pooled = np.stack([one.mean(0) if pooling == "mean" else one[0] for one in states])
    return pooled / np.linalg.norm(pooled, axis=1, keepdims=True)


@pytest.fixture(scope="module", params=["mean", pytest.param("cls", marks=pytest.mark.slow)])
def bundle(request, made, tmp_path_factory):
    """With all variants that vectors have."""
    folder = tmp_path_factory.mktemp(request.param)
    path = fleetbert.import_model(
        made[0], folder / "bundle", task="embedding", pooling=request.param, max_length=64
    )
    random = np.random.default_rng(1)
    # Each pair once, none of a text and itself: equal cosines would be ranked by their rounding.
    picked = random.permutation(list(itertools.combinations(range(len(TEXTS)), 2))).tolist()
    vectors = expected(made[1], request.param)
    rows = [(TEXTS[a], TEXTS[b], float(vectors[a] @ vectors[b])) for a, b in picked]
    for method in ("static", "dynamic", *HALF):
        calibration = {"calibration": TEXTS} if method == "static" else {}
        fleetbert.quantize(
            path, method=method, gate=rows, max_drop=0.2, output_dir=folder / method, **calibration
        )
    assert commands.call("export", "--bundle", path, "--format", "onnx") == 0
    return path, request.param, rows


def vectors_of(bundle: Path, variant: str, texts=TEXTS, **keys) -> np.ndarray:
    return np.stack([one.vector for one in fleetbert.load(bundle, variant, **keys)(texts)])


def test_vectors_are_pooled_from_a_texts_own_tokens(made, bundle):
    path, pooling, _ = bundle
    wanted = expected(made[1], pooling)
    for variant in ("float32", "onnx"):
        np.testing.assert_allclose(vectors_of(path, variant), wanted, atol=2e-5)
    for variant in ("int8-static", "int8-dynamic", *HALF):
        found = vectors_of(path, variant)
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
        cosines = (found * wanted).sum(1)
        assert cosines.min() > 0.97, (variant, cosines)
        others = (found * np.roll(wanted, 1, 0)).sum(1)
        assert others.max() < cosines.min()


def test_a_text_alone_has_the_vector_that_it_has_beside_others(bundle):
    path, _, _ = bundle
    for variant, most in (("float32", 1e-4), ("int8-static", 1e-4), *((one, 0.02) for one in HALF)):
        model = fleetbert.load(path, variant)
        alone = np.stack([model([text])[0].vector for text in TEXTS])
        np.testing.assert_allclose(model(TEXTS)[3].vector, alone[3], atol=most)
        np.testing.assert_allclose(np.stack([one.vector for one in model(TEXTS)]), alone, atol=most)


def test_what_the_bundle_says(bundle):
    path, pooling, rows = bundle
    described = bundles.read(path).task
    assert (described.width, described.pooling, described.labels) == (64, pooling, [])
    assert f"a vector of 64 numbers and length 1 ({pooling})" in (path / "README.md").read_text()
    assert bundles.read(path).variant("int8-static").float32_layers == []
    report = fleetbert.load(path).evaluate(rows)
    assert report["n"] == 36
    assert report["spearman"] == pytest.approx(1, abs=1e-3)
    measured = bundles.read(path).variant("int8-static").accuracy[0]
    assert (measured.metric, measured.n, measured.drop.test) == ("spearman", 36, "bootstrap")
    assert answer.load(path).task.outputs([]) == 64


def test_ask_tells_how_similar_texts_are(bundle, capsys):
    assert commands.call("ask", "--bundle", bundle[0], *TEXTS[:2]) == 0
    asked = capsys.readouterr().out.splitlines()
    assert "64 numbers" in asked[1]
    assert asked[-1].startswith("similarity of 1 and 2: ")


class TestFolders:
    """What a folder of sentence-transformers says."""

    @pytest.fixture
    def folder(self, made, tmp_path):
        path = tmp_path / "model"
        path.mkdir()
        for file in made[0].iterdir():
            (path / file.name).symlink_to(file)
        (path / "1_Pooling").mkdir()

        def say(pooling, *modules):
            (path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
            types = [f"sentence_transformers.models.{name}" for name in modules]
            (path / "modules.json").write_text(json.dumps([{"type": one} for one in types]))
            return path

        return say

    @pytest.mark.parametrize(
        ("sentence", "pooling"),
        [
            ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
            ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ],
    )
    def test_its_pooling_is_taken(self, folder, tmp_path, sentence, pooling, made):
        source = sources.open_source(
            fleetbert.config.Model(
                init=str(folder(sentence, "Transformer", "Pooling", "Normalize"))
            )
        )
        assert sources.is_of_vectors(source)
        assert source.with_pooling(None, "pooling").shape["pooling"] == pooling
        assert source.with_pooling("cls", "pooling").shape["pooling"] == "cls"

    def test_its_pooling_may_lie_elsewhere(self, folder):
        path = folder({"pooling_mode_cls_token": True})
        (path / "1_Pooling").rename(path / "pooling")
        modules = [{"path": "", "type": "a.Transformer"}, {"path": "pooling", "type": "b.Pooling"}]
        (path / "modules.json").write_text(json.dumps(modules))
        source = sources.open_source(fleetbert.config.Model(init=str(path)))
        assert source.with_pooling(None, "pooling").shape["pooling"] == "cls"

    @pytest.mark.parametrize("named", ["", "0_Transformer"])
    def test_its_encoder_may_lie_below(self, made, tmp_path, named):
        """Older versions of sentence-transformers write it so."""
        shutil.copytree(made[0], tmp_path / "0_Transformer")
        (tmp_path / "1_Pooling").mkdir()
        (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
        kinds = {"0_Transformer": "Transformer", "1_Pooling": "Pooling"}
        modules = [{"path": path, "type": f"a.{kind}"} for path, kind in kinds.items()]
        (tmp_path / "modules.json").write_text(json.dumps(modules))
        source = sources.open_source(fleetbert.config.Model(init=str(tmp_path / named)))
        assert source.with_pooling(None, "pooling").shape["pooling"] == "cls"
        modules.append({"path": "2_Dense", "type": "a.Dense"})
        (tmp_path / "modules.json").write_text(json.dumps(modules))
        with pytest.raises(fleetbert.UserError, match="a module Dense after its encoder"):
            source.with_pooling(None, "pooling")

    def test_what_it_does_to_texts_is_told(self, folder, caplog):
        path = folder({"pooling_mode_mean_tokens": True}, "Transformer", "Pooling")
        source = sources.open_source(fleetbert.config.Model(init=str(path), lowercase=False))
        source.with_pooling(None, "pooling")
        assert not caplog.records
        (path / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
        prompts = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
        (path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
        source.with_pooling(None, "pooling")
        assert "says do_lower_case: true, and the tokenizer keeps capital letters" in caplog.text
        assert "puts 'query: ' before each text (default_prompt_name: query)" in caplog.text

    @pytest.mark.parametrize(("tokens", "taken"), [(None, 128), (20, 20), (4096, 128)])
    def test_texts_are_as_long_as_it_says(self, folder, tmp_path, tokens, taken):
        """128: the positions that the model has."""
        path = folder({"pooling_mode_mean_tokens": True}, "Transformer", "Pooling")
        if tokens:
            fields = json.dumps({"max_seq_length": tokens})
            (path / "sentence_bert_config.json").write_text(fields)
        made = fleetbert.import_model(path, tmp_path / "bundle")
        assert bundles.read(made).max_length == taken

    def test_what_does_not_fit_is_refused(self, folder, tmp_path, made):
        def refused(path, match, **keys):
            with pytest.raises(fleetbert.UserError, match=match):
                fleetbert.import_model(path, tmp_path / "bundle", **keys)
            assert not (tmp_path / "bundle").exists()

        path = folder({"pooling_mode_max_tokens": True}, "Transformer", "Pooling")
        refused(path, "pooled by max; name pooling mean or cls", task="embedding")
        path = folder({"pooling_mode_mean_tokens": True}, "Transformer", "Pooling", "Dense")
        refused(path, "has a module Dense after its encoder", task="embedding")
        path = folder({"pooling_mode_mean_tokens": True}, "Transformer", "Pooling")
        (path / "model_head.pkl").write_bytes(b"")
        refused(path, "its classifier is model_head.pkl, SetFit's, which is not read")
        refused(made[0], "leave it out", task="embedding", labels=["a", "b"])
        refused(made[0], "name task: embedding too", pooling="cls")
        refused(made[0], "follows from the model's head", task="regression")
