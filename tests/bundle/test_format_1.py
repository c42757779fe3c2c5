"""A bundle of format 1, made at 0d8f5a1: all its variants open, answer as they did, and more can be
made from it. `format-1.json` has texts and the logits that were recorded then."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from fleetbert import bundle as bundles
from fleetbert import config
from fleetbert.compression import pipeline
from fleetbert.engines import answer, golden

HERE = Path(__file__).parent
RECORDED = json.loads((HERE / "format-1.json").read_text(encoding="utf-8"))


@pytest.fixture
def old(tmp_path) -> Path:
    shutil.unpack_archive(HERE / "format-1.zip", tmp_path)
    return tmp_path / "format-1"


def recorded_as(name: str) -> np.ndarray:
    return np.array(RECORDED["logits"][name], np.float32)


@pytest.mark.parametrize("name", list(RECORDED["logits"]))
def test_every_variant_answers_as_it_did(old, name):
    if name.startswith("lite"):
        pytest.importorskip("paddlelite", reason="wheels for x86-64 and Python 3.8 to 3.10 only")
    speed = 0.0 if name.startswith("early-exit") else None
    model = answer.load(old, name, threads=1, speed=speed)
    logits = answer.compute_logits(model, RECORDED["texts"], None).values
    expected = recorded_as(name)
    # int8 saturates on processors without VNNI, where this was recorded.
    atol = 1.0 if name.endswith(("int8-static", "exit-int8")) else 1e-3
    np.testing.assert_allclose(logits, expected, atol=atol)
    assert np.ptp(expected[:, [0, 2]], axis=0).min() > 5  # texts are told apart


def test_what_it_says_is_where_format_2_has_it(old):
    raw = json.loads((old / "manifest.json").read_text(encoding="utf-8"))
    assert raw["format_version"] == 1
    extra = {variant["name"]: variant["extra"] for variant in raw["variants"]}
    bundle = bundles.read(old)
    assert bundle.names == list(extra)
    static = bundle.variant("int8-static")
    assert isinstance(static, bundles.Int8Variant)
    assert static.thresholds == extra["int8-static"]["thresholds"]
    assert static.float32_layers == extra["int8-static"]["float32_layers"]
    assert static.output_errors == extra["int8-static"]["output_errors"]
    assert (static.method, static.algorithm, static.rounding) == ("static", "avg", "round")
    for name in ("int8-static", "int8-dynamic", "early-exit-int8"):
        comparison = bundle.variant(name).comparison
        assert comparison.model_dump().items() <= extra[name].items()
        kept = golden.read(bundle, name)
        np.testing.assert_allclose(kept.logits, np.float32(extra[name]["golden"]["logits"]))
    early = bundle.variant("early-exit-int8")
    assert isinstance(early, bundles.EarlyExitVariant)
    settings = (early.ends, early.head, early.speed, early.pad_id, early.times_faster)
    wanted = ("ends", "head", "speed", "pad_id", "times_faster")
    assert settings == tuple(extra["early-exit-int8"][name] for name in wanted)
    points = [point.model_dump() for point in early.by_speed]
    assert points == extra["early-exit-int8"]["by_speed"]
    lite = bundle.variant("lite-armv8-static-int8")
    assert isinstance(lite, bundles.LiteVariant)
    assert lite.kernels == extra["lite-armv8-static-int8"]["kernels"]
    # What a server takes by itself: all but what was never compared with float32.
    compared = [variant.name for variant in bundle.manifest.variants if variant.compared]
    assert compared == bundle.names[:6]


def test_a_variant_more_makes_it_format_2(old):
    before = bundles.read(old)
    table = old.parent / "dev.tsv"
    labels = [before.labels[number] for number in recorded_as("float32").argmax(1)]
    lines = [f"{label}\t{text}" for label, text in zip(labels, RECORDED["texts"])]
    table.write_text("\n".join(["label\ttext_a", *lines]) + "\n", encoding="utf-8")
    job = {
        "bundle": str(old),
        "method": "dynamic",
        "bits": 16,
        "gate": {"data": str(table)},
    }
    pipeline.quantize(config.Quantize.model_validate(job))
    assert json.loads((old / "manifest.json").read_text(encoding="utf-8"))["format_version"] == 2
    after = bundles.read(old)
    assert after.manifest.variants[:-1] == before.manifest.variants
    assert after.names[-1] == "int16-dynamic"
    for name in after.names:
        bundles.verify(after, name)
    logits = answer.compute_logits(answer.load(old, "int16-dynamic"), RECORDED["texts"], None)
    np.testing.assert_allclose(logits.values, recorded_as("float32"), atol=1e-3)


def test_methods_that_are_gone_are_still_read():
    """fleetbert of November 2026 made variants by `search` and `adaround`."""
    mix = {"float32": ["head"], "accuracy": 0.9, "logit_error": 0.1, "int8_share": 0.8}
    raw = {
        "name": "int8-search",
        "kind": "paddle-inference-int8",
        "method": "search",
        "rounding": "adaround",
        "search": {"float32_accuracy": 0.9, "alone": {"head": mix}, "mixes": [mix], "chosen": mix},
    }
    variant = bundles.Int8Variant.model_validate(raw)
    assert variant.method == "search"
    written = variant.model_dump()
    assert {name: written[name] for name in raw} == raw
