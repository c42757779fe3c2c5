"""Real runs of `bench infer` on a tiny bundle."""

from __future__ import annotations

import shutil

import numpy as np

from fleetbert import bundle as bundles
from fleetbert.bench import infer, infer_table, infer_texts, measure
from fleetbert.data.batching import SAFE_LENGTHS
from fleetbert.data.tokenizers import Encodings
from fleetbert.engines.alike import LARGEST_DIFFERENCE
from fleetbert.export.onnx import export_onnx


def test_all_variants_answer_alike(tiny_bundle, texts, tmp_path, measured, monkeypatch):
    monkeypatch.setattr(measure, "PAUSE", 0.0)
    bundle = tmp_path / "bundle"
    shutil.copytree(tiny_bundle, bundle)
    export_onnx(bundle)
    before = sorted((path, path.stat().st_mtime_ns) for path in bundle.rglob("*"))
    words = ["infer", "--bundle", bundle, "--data", texts, "--rounds", 2, "--threads", 1]
    report, out = measured(*words, "--markdown", "--engines", "float32,onnx")
    orders = ("single", "arrival", "sorted")
    labels = [f"{name}, {order}" for name in ("float32", "onnx") for order in orders]
    assert list(report["engines"]) == labels
    assert len(report["segments"]) == 12
    assert len({found["accuracy"] for found in report["engines"].values()} - {None}) == 1
    for label, found in report["engines"].items():
        assert f"| {label} | " in out
        assert found["difference"] < LARGEST_DIFFERENCE
        assert found["texts"] == 140 and found["peak_mb"] > 0 and found["cpu_ms_per_text"] > 0
        assert 0 <= found["padding"] < 1
        assert (found["p50_ms"] is not None) == (found["order"] == "single")
    assert "Largest difference between logits in float32" in out and "WARNING" not in out
    assert sorted((path, path.stat().st_mtime_ns) for path in bundle.rglob("*")) == before


def test_plans_cover_all_texts_once():
    lengths = np.random.default_rng(1).integers(3, 129, 100)
    ids = [np.zeros(length, np.int32) for length in lengths]
    encodings = Encodings(ids, lengths.astype(np.int32), 0)
    plans = infer_texts.plan(encodings)
    assert list(plans) == list(infer_texts.ORDERS)
    plans.update(infer_texts.plan(encodings, ["arrival:16", "length:8"]))
    for batches in plans.values():
        found = [index for indices, _ in batches for index in indices]
        assert sorted(found) == list(range(100))
        for indices, length in batches:
            assert length >= lengths[indices].max()
    assert [len(indices) for indices, _ in plans["arrival"]] == [32, 32, 32, 4]
    assert all(length == lengths[indices].max() for indices, length in plans["arrival"])
    assert plans["arrival:16"][0] == (list(range(16)), lengths[:16].max())
    longest = [length for _, length in plans["length:8"]]
    assert longest == [*sorted(lengths)[7::8], max(lengths)]
    assert plans["single"] == [([number], length) for number, length in enumerate(lengths)]
    assert all(length in SAFE_LENGTHS for _, length in plans["sorted"])


def test_the_faster_speed_is_the_largest_that_loses_no_more(tiny_bundle):
    curve = [(0.1, 0.88), (0.3, 0.87), (0.5, 0.866), (0.8, 0.85)]
    points = [bundles.SpeedPoint(speed=s, accuracy=a, mean_layers=2) for s, a in curve]
    measured = bundles.Accuracy(data="dev.tsv", n=9, accuracy=0.88, float32_accuracy=0.88)
    variant = bundles.EarlyExitVariant(
        name="early", ends=[1, 2], speed=0.1, accuracy=[measured], by_speed=points
    )
    assert infer.faster_speed(variant, 0.015) == 0.5
    assert infer.faster_speed(variant.model_copy(update={"speed": 0.5}), 0.015) is None
    assert infer.faster_speed(bundles.read(tiny_bundle).variant("float32"), 0.015) is None


def test_models_that_differ_are_warned_of():
    figures = measure.Figures(1, 1, 1, 1, 1, 1, 1, 1, 1)
    rows = {
        name: infer_table.Measured(name, "sorted", figures, 1, 0, None, None, None, difference)
        for name, difference in (("float32", 0.0), ("onnx", 0.02), ("int8", 0.5))
    }
    assert any("WARNING" in note for note in infer_table.difference_notes(rows, infer.EXACT))
    assert not any("WARNING" in note for note in infer_table.difference_notes(rows, ["float32"]))
    assert infer_table.difference_notes(rows, ["none"]) == []


def test_time_by_length_and_batch(tiny_bundle, texts, tmp_path, measured, bench, monkeypatch):
    monkeypatch.setattr(measure, "PAUSE", 0.0)
    page = tmp_path / "lengths.html"
    words = ["infer", "--bundle", tiny_bundle, "--data", texts, "--rounds", 1, "--threads", 1]
    words += ["--engines", "float32", "--sizes", "1,8", "--report", page]
    report, out = measured(*words, "--lengths", "3,8,16")
    found = [(row["order"], row["texts"], row["tokens"]) for row in report["engines"].values()]
    assert found == [
        (f"{length} tokens, batches of {size}", 8 * size, 8 * size * length)
        for size in (1, 8)
        for length in (3, 8, 16)
    ]
    assert all(row["padding"] == 0 and row["p50_ms"] > 0 for row in report["engines"].values())
    lines = [line.split("  ") for line in out.splitlines() if "batches of" in line]
    assert [line[0] for line in lines] == ["float32, batches of 1", "float32, batches of 8"]
    html = page.read_text()
    assert html.count("<svg") == 1
    assert "tokens of a text" in html and "float32, batches of 8" in html
    for wrong, sentence in (
        (["--lengths", "1000"], "--lengths: the bundle answers texts of 3 to"),
        (["--lengths", "a"], "a is no list of whole numbers from 1 on"),
        ([], "--report: is for --lengths"),
    ):
        code, _, err = bench(*words, *wrong)
        assert code == 2 and sentence in err
