"""Choosing and accepting never see the same texts."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from compressing import job

from fleetbert.compression import gate, pipeline, work
from fleetbert.core.errors import UserError

MANY = {"calibration.texts": 512}


def rows(path):
    return [tuple(line.split("\t")) for line in path.read_text().splitlines()[1:]]


def words(encodings):
    return {tuple(ids.tolist()) for ids in encodings.ids}


def test_what_is_held_out_calibrates_nothing(trained, tiny_data, caplog):
    caplog.set_level("INFO", "fleetbert")
    opened = work.open_work(job(trained, tiny_data, "static", MANY))
    sample = opened.selection
    assert len(sample.truth) == 160 // 5
    assert sample.name.startswith("32 texts held out of ")
    assert any("held out" in line and "by their labels" in line for line in caplog.messages)
    texts = {tuple(row[row > 0]) for b in opened.calibration_batches for row in b["input_ids"]}
    count = sum(len(b["input_ids"]) for b in opened.calibration_batches)
    assert count == 160 - 32
    assert not texts & words(sample.encodings)
    # As many of each label as the table has for these very texts.
    labels = {text: label for label, text in rows(tiny_data / "train.tsv")}
    tokenizer = opened.gate.model.tokenizer
    known = {
        tuple(ids.tolist()): labels[text]
        for text, ids in zip(labels, tokenizer.encode(list(labels), None, 16).ids)
    }
    found = [opened.gate.model.labels[number] for number in sample.truth]
    assert found == [known[tuple(ids.tolist())] for ids in sample.encodings.ids]


def test_without_labels_what_float32_answers_is_right(trained, tiny_data, tmp_path, caplog):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(text for _, text in rows(tiny_data / "train.tsv")) + "\n")
    caplog.set_level("INFO", "fleetbert")
    opened = work.open_work(job(trained, tiny_data, "static", {"calibration.data": str(path)}))
    assert opened.selection.float32_accuracy == 1.0
    np.testing.assert_array_equal(opened.selection.truth, opened.selection.float32.argmax(1))
    assert any("what float32 answers" in line for line in caplog.messages)


def test_a_table_of_its_own_may_be_named(trained, tiny_data, tmp_path):
    path = tmp_path / "own.tsv"
    lines = (tiny_data / "dev.tsv").read_text().splitlines()
    path.write_text("\n".join(lines[:41]) + "\n")
    named = {"selection.data": str(path), "selection.texts": 25}
    opened = work.open_work(job(trained, tiny_data, "static", {**MANY, **named}))
    assert (opened.selection.name, len(opened.selection.truth)) == (str(path), 25)
    assert sum(len(b["input_ids"]) for b in opened.calibration_batches) == 160


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"selection.data": "dev.tsv"}, r"selection.data: .* has the texts of gate.data"),
        ({"calibration.data": "dev.tsv"}, r"calibration.data: .* has the texts of gate.data"),
        ({"selection.data": "missing.tsv"}, r"missing\.tsv: no such file"),
        ({"calibration.data": "few.txt"}, "4 texts are too few to hold some out"),
    ],
)
def test_the_gates_texts_and_too_few_are_refused(
    bundle, tiny_data, tmp_path, monkeypatch, changes, message
):
    monkeypatch.chdir(tmp_path)
    shutil.copy(tiny_data / "dev.tsv", "dev.tsv")
    Path("few.txt").write_text("word1\nword2\nword3\nword4\n")
    with pytest.raises(UserError, match=message):
        _ = work.open_work(job(bundle, tiny_data, "onnx", changes)).selection


@pytest.fixture
def asked(monkeypatch):
    """Which tables' texts were answered for a choice, in order; the gate's measure ends it."""
    names = []
    run = gate.Sample.run

    def recorded(sample, *given):
        names.append(sample.name)
        return run(sample, *given)

    def measured(*_):
        names.append("measure")
        raise InterruptedError

    monkeypatch.setattr(gate.Sample, "run", recorded)
    monkeypatch.setattr(gate.Gate, "measure", measured)
    return names


def test_nothing_is_chosen_on_the_gates_texts(bundle, tiny_data, asked):
    with pytest.raises(InterruptedError):
        pipeline.quantize(job(bundle, tiny_data, "onnx", {}))
    first, *chosen, last = asked
    assert first == str(tiny_data / "dev.tsv")  # what float32 has to lose
    assert last == "measure" and chosen
    assert all("held out" in name for name in chosen)


def test_each_model_answers_the_gates_texts_once(bundle, tiny_data, monkeypatch):
    names, run = [], gate.Sample.run

    def recorded(sample, opened, name=""):
        names.append(name)
        return run(sample, opened, name)

    monkeypatch.setattr(gate.Sample, "run", recorded)
    pipeline.quantize(job(bundle, tiny_data, "dynamic", {"gate.max_accuracy_drop": 1.0}))
    assert names == ["float32", "int8-dynamic"]
