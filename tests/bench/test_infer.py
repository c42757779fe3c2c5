"""Real runs of `bench infer`; the peer is ONNX Runtime in this environment."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from tiny_bert import LABELS

from fleetbert import cli
from fleetbert.bench import infer
from fleetbert.data.batching import SAFE_LENGTHS
from fleetbert.data.tokenizer import Encodings
from fleetbert.errors import UserError
from fleetbert.infer.alike import LARGEST_DIFFERENCE


@pytest.fixture
def texts(tmp_path):
    """A table of 70 texts of 1 to 40 words."""
    rng = np.random.default_rng(0)
    rows = ["label\ttext_a"]
    for number in range(70):
        words = " ".join(f"word{word}" for word in rng.integers(0, 150, rng.integers(1, 41)))
        rows.append(f"{LABELS[number % 3]}\t{words}")
    path = tmp_path / "texts.tsv"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def test_all_engines_answer_alike(tiny_bundle, texts, tmp_path, capsys):
    before = sorted((path, path.stat().st_mtime_ns) for path in tiny_bundle.rglob("*"))
    words = ["--bundle", tiny_bundle, "--data", texts, "--rounds", 2, "--threads", 1]
    words += ["--peer-python", sys.executable, "--json", tmp_path / "report.json", "--markdown"]
    with pytest.raises(SystemExit) as caught:
        cli.main(["bench", "infer", *map(str, words)])
    out, err = capsys.readouterr()
    assert caught.value.code == 0, err
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert len(report["engines"]) == 4
    assert len(report["segments"]) == 8
    accuracies = {found["accuracy"] for found in report["engines"].values()}
    assert len(accuracies) == 1 and None not in accuracies
    for name, found in report["engines"].items():
        assert f"| {name} | " in out
        assert found["difference"] < LARGEST_DIFFERENCE
        assert found["texts"] == 140 and found["peak_mb"] > 0 and found["cpu_seconds"] > 0
        assert 0 <= found["padding"] < 1
    assert all(len(found["rounds"]) == 2 for found in report["ratios"])
    assert sorted((path, path.stat().st_mtime_ns) for path in tiny_bundle.rglob("*")) == before


def test_without_a_bundle_one_with_random_weights_is_made(tiny_vocab, texts, monkeypatch):
    monkeypatch.setitem(infer.SHAPES, "minilm", (1, 32, 2, 64))
    report = infer.bench(
        None,
        str(texts),
        texts=20,
        rounds=1,
        threads=1,
        peer_python=sys.executable,
        vocab=str(tiny_vocab),
        max_length=32,
    )
    assert report["data"]["texts"] == 20
    assert all(found["accuracy"] is None for found in report["engines"].values())
    text = infer.format_report(report)
    assert "The weights are random" in text and "WARNING" not in text


def test_plans_cover_all_texts_once_and_sorted_ones_are_the_same():
    lengths = np.random.default_rng(1).integers(3, 129, 100)
    ids = [np.zeros(length, np.int32) for length in lengths]
    ours, arrival, theirs, padded = infer.plan(Encodings(ids, lengths.astype(np.int32), 0))
    assert ours.batches == theirs.batches
    for engine in (ours, arrival, theirs, padded):
        found = [index for indices, _ in engine.batches for index in indices]
        assert sorted(found) == list(range(100))
        for indices, length in engine.batches:
            assert length >= lengths[indices].max()
    assert [len(indices) for indices, _ in arrival.batches] == [32, 32, 32, 4]
    assert all(length == lengths[indices].max() for indices, length in arrival.batches)
    assert all(length in SAFE_LENGTHS for _, length in ours.batches + padded.batches)


def test_models_that_differ_are_warned_of():
    engine = {
        **dict.fromkeys(("texts_per_s", "lowest", "highest", "tokens_per_s", "padding"), 1.0),
        "batches": 1,
        "cpu_ms_per_text": 1.0,
        "peak_mb": 1.0,
        "accuracy": None,
        "difference": 0.02,
    }
    report = {
        "data": {"texts": 1, "mean_tokens": 3.0},
        "machine": {"threads": 1, "processor": "x"},
        "texts_from": "a.tsv",
        "engines": {"a": engine},
        "ratios": [],
        "random_weights": None,
        "busy": None,
    }
    assert "WARNING" in infer.format_report(report)


def test_numbers_below_one_are_refused(tiny_bundle):
    with pytest.raises(UserError, match="--rounds is 0"):
        infer.bench(
            str(tiny_bundle), None, texts=1, rounds=0, threads=1, peer_python=sys.executable
        )
