"""A classifier of a few texts a label: it reads vectors, and everything after training takes it."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import tiny_bert

import fleetbert
from fleetbert import bundle as bundles
from fleetbert.training import few_labels

RANDOM = np.random.default_rng(0)
TOPICS = [tiny_bert.WORDS[start : start + 8] for start in (0, 50, 100)]
LABELS = ["word1", "word51", "2"]  # names of which two say what they are about


def rows(texts: int, seed: int) -> list[tuple[str, str]]:
    """So many texts of each label, of words of its topic, among others."""
    random = np.random.default_rng(seed)
    return [
        (" ".join([*random.choice(topic, 3), *random.choice(tiny_bert.WORDS, 2)]), label)
        for label, topic in zip(LABELS, TOPICS)
        for _ in range(texts)
    ]


TRAIN, DEV = rows(8, 1), rows(30, 2)
KEYS = {
    "device": "cpu",
    "max_length": 16,
    "callbacks.progress": False,
    "callbacks.visualdl": False,
    "callbacks.report": False,
    "callbacks.profiler.enabled": False,
}


@pytest.fixture(scope="module")
def run(tiny_encoder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return fleetbert.train(TRAIN, DEV, init=tiny_encoder, few_shot=True, output_dir=folder, **KEYS)


def test_it_learns_and_is_measured_as_it_is_written(run):
    assert run.metrics["accuracy"] > 0.7
    report = fleetbert.load(run.bundle).evaluate(DEV)
    for figure in ("accuracy", "loss"):
        assert report[figure] == pytest.approx(run.metrics[figure], abs=1e-4)
    described = bundles.read(run.bundle).task
    assert (described.name, described.pooling, described.width) == ("classification", "mean", None)
    assert set(described.labels) == set(LABELS)


def test_texts_without_labels_are_learned_from(tiny_encoder, tmp_path, caplog):
    few, others = [*rows(2, 1)], tmp_path / "others.txt"
    others.write_text("\n".join(text for text, _ in rows(40, 3)) + "\n", encoding="utf-8")
    right = []
    for name, keys in (("without", {}), ("with", {"data.unlabelled": str(others)})):
        given = {"init": tiny_encoder, "few_shot": True, "epochs": 1, **KEYS, **keys}
        run = fleetbert.train(few, output_dir=tmp_path / name, **given)
        right.append(fleetbert.load(run.bundle).evaluate(DEV)["accuracy"])
    assert right[1] > right[0] + 0.02, right
    assert "may do harm" not in caplog.text
    others.write_text("word1\n" * 59)
    fleetbert.train(few, output_dir=tmp_path / "harm", **{**given, "epochs": 2})
    assert "59 texts may do harm; give 60 or more for 3 labels" in caplog.text
    saved = list((tmp_path / "harm" / "checkpoints").iterdir())
    assert len(saved) == 1, "epochs of one step are shorter than writing a checkpoint"


@pytest.mark.slow
def test_probabilities_are_those_of_texts_that_a_training_left_out(tiny_encoder, tmp_path, caplog):
    """Some labels are wrong: training learns them, so that it seems sure."""
    caplog.set_level(logging.INFO)
    random = np.random.default_rng(4)
    train, dev = (
        [(text, random.choice(LABELS) if random.random() < 0.3 else label) for text, label in few]
        for few in (rows(16, 1), DEV)
    )
    reports = []
    for share in (0.0, 0.25):
        given = {"init": tiny_encoder, "few_shot": True, **KEYS, "trainer.calibrate": share}
        run = fleetbert.train(train, output_dir=tmp_path / str(share), **given)
        reports.append(fleetbert.load(run.bundle).evaluate(dev))
    assert caplog.text.count("trains again with 12 of the texts") == 4  # as there are fewer than 50
    assert reports[1]["accuracy"] == reports[0]["accuracy"]
    assert reports[1]["ece"] < reports[0]["ece"] / 2, reports


def test_a_few_right_answers_are_no_certainty(tiny_encoder, tmp_path, caplog, monkeypatch):
    """10 of 12 is what three of three show, with one more that has all labels alike."""
    caplog.set_level(logging.INFO)
    outputs = np.arange(3), 9 * np.eye(3, dtype=np.float32)
    monkeypatch.setattr(few_labels, "_left_out", lambda job, labels: outputs)
    keys = {**KEYS, "trainer.max_steps": 1}
    fleetbert.train(TRAIN, init=tiny_encoder, few_shot=True, output_dir=tmp_path, **keys)
    assert f"temperature {9 / np.log(10):.3f}, from 3 texts left out" in caplog.text


def test_its_folder_is_opened_with_its_head(run, tmp_path):
    """Imported, trained further, and as a teacher."""
    texts = [text for text, _ in DEV]
    expected = fleetbert.load(run.bundle).predict_proba(texts)
    imported = fleetbert.import_model(run.model, tmp_path / "bundle", max_length=16)
    np.testing.assert_allclose(fleetbert.load(imported).predict_proba(texts), expected, atol=1e-4)
    keys = {"layers": 1, "distill.hidden_weight": 0.0, "epochs": 1, **KEYS}
    student = fleetbert.distill(run.model, TRAIN, DEV, output_dir=tmp_path / "student", **keys)
    assert student.metrics["accuracy"] > 1 / 3


def test_a_table_with_few_texts_offers_it(tiny_encoder, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    keys = {"trainer.max_steps": 1, **KEYS}
    vectors = fleetbert.import_model(tiny_encoder, tmp_path / "vectors")  # it says how it pools
    assert bundles.read(vectors).task.name == "embedding"
    fleetbert.train(TRAIN, init=tiny_encoder, output_dir=tmp_path / "run", **keys)
    assert "8.0 texts a label are few; task.few_shot=true learns more from them" in caplog.text


@pytest.mark.parametrize(
    ("train", "dev", "keys", "sentence"),
    [
        (
            TRAIN[:9],
            None,
            {},
            "has 1 text of the label 'word51', and task.few_shot",
        ),
        (TRAIN, [("word1", "others")], {}, "others"),
        (
            TRAIN,
            None,
            {"data.unlabelled": "{labelled}"},
            r"labelled\.tsv:2: has the label 'word1', and labels are not read here",
        ),
        (TRAIN, None, {"data.unlabelled": "{folder}/nothing.txt"}, "nothing.txt"),
        (TRAIN, None, {"task": "multi_label_classification"}, "task.few_shot: is for task.name"),
        (TRAIN, None, {"init": "random", "model.vocab": "vocab.txt"}, "task.few_shot: is for"),
    ],
)
def test_mistakes_are_named(train, dev, keys, sentence, tiny_encoder, tmp_path):
    labelled = tmp_path / "labelled.tsv"
    labelled.write_text("text_a\tlabel\nword1\tword1\n")
    places = {"labelled": labelled, "folder": tmp_path}
    keys = {name: value.format(**places) for name, value in keys.items()}
    given = {"init": tiny_encoder, "output_dir": tmp_path / "run", **KEYS, **keys}
    with pytest.raises(fleetbert.UserError, match=sentence):
        fleetbert.train(train, dev, few_shot=True, **given)
