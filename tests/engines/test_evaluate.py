"""A table measured by a bundle; the figures themselves are tested in tests/test_metrics.py."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn import metrics

from fleetbert.config import Columns
from fleetbert.core.errors import UserError
from fleetbert.engines import answer, evaluate
from fleetbert.tasks.classification import CLASSIFICATION

MORE = {"texts_per_s": 1.0, "skipped": 0, "truncated": 0, "mean_layers": None}


def test_a_table_is_measured(model, tmp_path):
    texts = [f"word{number} word{number + 1}" for number in range(60)]
    answers = answer.answer(model, texts)
    # Every third label is wrong.
    labels = [
        model.labels[(model.labels.index(found.label) + (number % 3 == 0)) % 3]
        for number, found in enumerate(answers)
    ]
    path = tmp_path / "dev.tsv"
    rows = [f"{text}\t{label}" for text, label in zip(texts, labels)]
    path.write_text("\n".join(["text_a\tlabel", *rows]), encoding="utf-8")
    report = evaluate.evaluate(model, path)
    predicted = [found.label for found in answers]
    assert report["n"] == 60
    assert report["accuracy"] == metrics.accuracy_score(labels, predicted) == pytest.approx(2 / 3)
    assert report["confusion"] == (
        metrics.confusion_matrix(labels, predicted, labels=model.labels).tolist()
    )
    assert report["texts_per_s"] > 0
    json.dumps(report, allow_nan=False)
    printed = evaluate.format_report(report)
    assert "accuracy 0.6667" in printed
    assert all(label in printed for label in model.labels)
    # Chinese labels take two columns of the terminal; numbers still stand in one line.
    ends = {len(line.encode("gbk")) for line in printed.splitlines()[2:6]}
    assert len(ends) == 1


def test_it_says_over_which_classes_macro_f1_is():
    truth = np.array([0, 1, 1, 0])
    for labels, said in [
        ("ab", "macro F1 1.0000, the mean over all 2 classes"),
        (
            "abc",
            "macro F1 1.0000, the mean over the 2 classes that occur in the table or the answers; "
            "0.6667 over all 3",
        ),
    ]:
        logits = np.eye(len(labels), dtype=np.float32)[truth]
        measures = CLASSIFICATION.metrics.evaluate(truth, logits, list(labels))
        assert said in evaluate.format_report({**measures, **MORE}).splitlines()


def test_of_many_labels_the_worst_and_most_confused_are_printed():
    labels = [f"label {number}" for number in range(7051)]
    truth = np.repeat(np.arange(200), 2)
    logits = np.zeros((400, 7051), np.float32)
    logits[np.arange(400), np.where(truth == 9, 4000, truth)] = 1.0
    logits[0, 77] = logits[2, 78] = 2.0
    measures = CLASSIFICATION.metrics.evaluate(truth, logits, labels)
    lines = evaluate.format_report({**measures, **MORE}).splitlines()
    assert lines[3].split() == ["label", "9", "0.0000", "0.0000", "0.0000", "2"]
    assert "the 50 worst of 7051 classes; --json has all" in lines
    first = next(n for n, line in enumerate(lines) if line.startswith("most confused: true"))
    assert [line.split() for line in lines[first + 1 :]] == [
        ["label", "9", "label", "4000", "2"],
        ["label", "0", "label", "77", "1"],
        ["label", "1", "label", "78", "1"],
    ]
    assert len(lines) < 70


def test_an_unknown_label_is_named_with_its_line(model, tmp_path):
    path = tmp_path / "dev.tsv"
    for rows, on_bad_line, message in [
        (
            "word1\tbad\nword2\tsuperb",
            "stop",
            r"dev\.tsv:3: .*'superb'; it knows 'bad', 'so so', '好'",
        ),
        ("word2\tSo  So", "stop", r"label 'So  So' \(is it 'so so', written otherwise\?\);"),
        ("word1\t0", "skip", "does not know the label '0'"),  # nothing is left
    ]:
        path.write_text(f"text_a\tlabel\n{rows}\n")
        with pytest.raises(UserError, match=message):
            evaluate.evaluate(model, path, Columns(on_bad_line=on_bad_line))
    path.write_text("text_a\tlabel\nword1\tbad\nword2\tsuperb\n")
    report = evaluate.evaluate(model, path, Columns(on_bad_line="skip"))
    assert (report["n"], report["skipped"]) == (1, 1)
    assert "1 bad line was skipped" in evaluate.format_report(report)
