"""`fleetbert.Scorer`: Arrow tables in, the same with answers out, in any process."""

from __future__ import annotations

import json
import pickle
from multiprocessing import get_context

import numpy as np
import pyarrow as pa
import pytest

import fleetbert
from fleetbert.scoring import scorer

TEXTS = ["word1 word2", "word3", "word4 word5 word6", "word7"]


def test_a_table_gets_the_answers_of_the_model(tiny_bundle, monkeypatch):
    monkeypatch.setattr(scorer, "WINDOW", 3)
    model = fleetbert.load(tiny_bundle)
    expected = model(TEXTS)
    table = pa.table({"text": TEXTS, "n": range(4)})
    for given in (table, table.to_batches()[0]):
        result = fleetbert.Scorer(tiny_bundle)(given)
        assert result.select(["text", "n"]).equals(table)
        assert result["predicted_label"].to_pylist() == [answer.label for answer in expected]
        scores = np.array(result["predicted_scores"].to_pylist())
        probabilities = [list(answer.scores.values()) for answer in expected]
        np.testing.assert_allclose(scores, probabilities, atol=1e-6)
        labels = result.schema.field("predicted_scores").metadata[b"labels"]
        assert json.loads(labels) == model.labels


def test_rows_without_a_text(tiny_bundle):
    table = pa.table({"text": ["word1", None, "word2"]})
    with pytest.raises(fleetbert.UserError, match=r"row 1 \(text\) is null; leave it out, or say"):
        fleetbert.Scorer(tiny_bundle)(table)
    result = fleetbert.Scorer(tiny_bundle, on_bad_row="null")(table)
    assert [label is None for label in result["predicted_label"].to_pylist()] == [
        False,
        True,
        False,
    ]
    assert result["predicted_scores"].to_pylist()[1] is None
    alone = fleetbert.Scorer(tiny_bundle)(table.take([0, 2]))
    assert result["predicted_label"].to_pylist()[::2] == alone["predicted_label"].to_pylist()
    none = fleetbert.Scorer(tiny_bundle, on_bad_row="null")(table.slice(1, 1))
    assert none["predicted_label"].to_pylist() == [None]


def _in_another_process(pickled: bytes, table: pa.Table) -> pa.Table:
    return pickle.loads(pickled)(table)


def test_it_is_pickled_without_its_model(tiny_bundle, monkeypatch):
    monkeypatch.chdir(tiny_bundle.parent)
    answering = fleetbert.Scorer(tiny_bundle.name)
    table = pa.table({"text": TEXTS})
    expected = answering(table)
    monkeypatch.chdir("/")
    pickled = pickle.dumps(answering)
    assert len(pickled) < 10_000
    with get_context("spawn").Pool(1) as pool:
        assert pool.apply(_in_another_process, (pickled, table)).equals(expected)
