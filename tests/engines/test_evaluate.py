"""A table measured by a bundle; the figures themselves are tested in tests/test_metrics.py."""

from __future__ import annotations

import json

import pytest
from sklearn import metrics

from fleetbert.engines import answer, evaluate
from fleetbert.errors import UserError


@pytest.fixture(scope="module")
def model(tiny_bundle):
    return answer.load(tiny_bundle)


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


def test_an_unknown_label_is_named_with_its_line(model, tmp_path):
    path = tmp_path / "dev.tsv"
    path.write_text("text_a\tlabel\nword1\tbad\nword2\tsuperb\n")
    with pytest.raises(UserError, match=r"dev\.tsv:3: .*'superb'; it knows 'bad', 'so so', '好'"):
        evaluate.evaluate(model, path)
    report = evaluate.evaluate(model, path, on_bad_line="skip")
    assert (report["n"], report["skipped"]) == (1, 1)
    assert "1 bad line was skipped" in evaluate.format_report(report)


def test_a_table_of_unknown_labels_only_is_an_error(model, tmp_path):
    path = tmp_path / "dev.tsv"
    path.write_text("text_a\tlabel\nword1\t0\n")
    with pytest.raises(UserError, match="does not know the label '0'"):
        evaluate.evaluate(model, path, on_bad_line="skip")
