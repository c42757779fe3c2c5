"""method: vocabulary, and training with model.vocabulary."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny_bert
import tiny_job
from compressing import EACH_TASK, job, rows_of

import fleetbert
from fleetbert import bundle as bundles
from fleetbert import config
from fleetbert.compression import pipeline
from fleetbert.core.errors import GateFailed, UserError
from fleetbert.data import tokenizers
from fleetbert.engines import answer


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def few_words(tiny_data, tmp_path) -> Path:
    """A table of those dev texts that have no words from 100 on."""
    header, *rows = (tiny_data / "dev.tsv").read_text().splitlines()
    few = [row for row in rows if all(len(word) < len("word100") for word in row.split()[1:])]
    path = tmp_path / "few.tsv"
    path.write_text("\n".join([header, *few]) + "\n")
    return path


def trim(bundle: Path, data: Path, texts: Path, **changes: object) -> pipeline.Result:
    return pipeline.quantize(
        job(bundle, data, "vocabulary", {"vocabulary": {"data": str(texts)}, **changes})
    )


def logits(path: Path, texts: Path, variant: str = "float32") -> np.ndarray:
    model = answer.load(path, variant)
    lines = [line.split("\t")[1] for line in texts.read_text().splitlines()[1:]]
    return answer.outputs(model, lines).values


def test_a_new_bundle_answers_the_same(bundle, tiny_data, few_words, tmp_path, caplog):
    """To the texts that the tokens were taken from; int8 of it is a variant like any other."""
    caplog.set_level("INFO")
    before = (bundle / "manifest.json").read_bytes()
    made = trim(bundle, tiny_data, few_words, **{"gate.max_accuracy_drop": 0.3})
    new = made.bundle
    assert new.root == Path(f"{bundle}-vocabulary").resolve()
    assert (bundle / "manifest.json").read_bytes() == before
    count = tokenizers.open(new).vocab_size
    assert count < 110 < tokenizers.open(bundles.read(bundle)).vocab_size
    saved = 4 * tiny_job.SHAPE["hidden_size"] * (len(tiny_job.VOCAB) - count)
    float32 = new.variant("float32")
    sizes = [path / "float32" / "model.pdiparams" for path in (bundle, new.root)]
    assert sizes[0].stat().st_size - sizes[1].stat().st_size == pytest.approx(saved, abs=4)
    assert f"vocabulary: {count} of {len(tiny_job.VOCAB)} tokens" in caplog.text
    known = set(few_words.read_text().split())
    words = [
        w for row in (tiny_data / "dev.tsv").read_text().splitlines()[1:] for w in row.split()[1:]
    ]
    lost = np.mean([word not in known for word in words])
    assert f"dev.tsv: {lost:.2%} of the tokens fall back" in caplog.text
    np.testing.assert_allclose(logits(new.root, few_words), logits(bundle, few_words), atol=1e-5)
    assert float32.accuracy[0].drop is not None
    assert "vocabulary" in made.report.read_text()
    assert made.report.parent == bundle

    pipeline.quantize(job(new.root, tiny_data))
    small = bundles.read(new.root).variant("int8-static")
    assert small.accuracy[0].float32_accuracy == pytest.approx(float32.accuracy[0].accuracy)


@EACH_TASK
def test_every_task(task, pooling, tiny_vocab, tmp_path):
    """Pairs, words with tags and vectors: what float32 answers to the texts of the tokens."""
    bundle = tiny_bert.make_bundle(tmp_path / "bundle", task, tiny_vocab, pooling)
    table = tiny_job.write_rows(tmp_path / "rows.jsonl", rows_of(task))
    made = fleetbert.quantize(
        bundle, method="vocabulary", gate=table, max_drop=0, vocabulary={"data": str(table)}
    )
    assert made.bundle == Path(f"{bundle}-vocabulary").resolve()
    assert made.size < made.float32_size == bundles.read(bundle).variant("float32").bytes
    variant = bundles.read(made.bundle).variant("float32")
    assert variant.comparison.max_logit_difference < 1e-4


def test_the_gate_stops_one_that_lost_words(bundle, tiny_data, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("word149\n")
    with pytest.raises(GateFailed, match=r"more texts in .* keep more tokens"):
        trim(bundle, tiny_data, texts)
    assert not list(bundle.parent.glob("*vocabulary*"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocabulary": {}}, "vocabulary.data: name a file of texts"),
        ({"vocabulary": {"keep": ["word1"]}}, r"vocabulary\.keep: names tokens beside those"),
        ({"source": "pruned-float32"}, "source: method: vocabulary makes a new bundle"),
        ({"bits": 16}, "bits: method: vocabulary computes in float32"),
    ],
)
def test_what_cannot_be(bundle, tiny_data, few_words, changes, message):
    with pytest.raises(ValueError, match=message):
        trim(bundle, tiny_data, few_words, **changes)


def test_the_bundle_itself_is_not_replaced(bundle, tiny_data, few_words):
    into = {"vocabulary": {"data": str(few_words), "into": f"{bundle}/"}}
    with pytest.raises(UserError, match="is the bundle itself"):
        trim(bundle, tiny_data, few_words, **into)


def test_training_begins_with_fewer_tokens(trained, tiny_data, few_words, tmp_path):
    """Of a trained model, whose folder then opens with as few; resumed it is the same job."""
    from fleetbert.training.job import train

    shutil.copytree(trained.parent / "model", tmp_path / "model")
    words = {"init": str(tmp_path / "model"), "vocabulary": {"data": "train", "keep": ["[MASK]"]}}
    values = {"data.train": str(few_words), "model": words, "trainer.epochs": 1}
    for epochs in (1, 2):
        train(tiny_job.job(tiny_data, tmp_path / "run", {**values, "trainer.epochs": epochs}))
    new = bundles.read(tmp_path / "run" / "bundle")
    assert tokenizers.open(new).vocab_size < 110
    spec = tokenizers.find(tmp_path / "run" / "model")
    assert tokenizers.open(spec).vocab_size == tokenizers.open(new).vocab_size


def test_a_student_reads_as_its_teacher(tiny_data, tmp_path):
    values = tiny_job.values(tiny_data, tmp_path)
    values["model"] = {"vocabulary": {"data": "train"}}
    with pytest.raises(ValueError, match="train the teacher with"):
        config.Distill.model_validate({**values, "distill": {"teacher": "model"}})
