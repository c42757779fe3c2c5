"""Which variants may answer."""

from __future__ import annotations

import logging

import pytest

from fleetbert import bundle as bundles
from fleetbert.compat import environment
from fleetbert.deploy.inference.repository import variants
from fleetbert.errors import UserError


@pytest.fixture
def with_early(edit_manifest):
    """The tiny bundle with an entry of an early-exit variant, which is never opened."""

    def add(manifest):
        names = ("files", "runs_on")
        early = {name: manifest["variants"][0][name] for name in names}
        early.update(name="early", kind="paddle-inference-early-exit")
        early.update(ends=[1, 2], speed=0.4, times_faster=1.6)
        accuracy = {"data": "dev.tsv", "data_sha256": "0" * 64, "n": 10, "accuracy": 0.9}
        known = [{**accuracy, "float32_accuracy": 0.9}]
        manifest["variants"].append({**early, "accuracy": known})

    return bundles.read(edit_manifest(add))


def test_early_exit_is_served_where_its_accuracy_is_known(with_early):
    assert variants.candidates(with_early, "cpu") == ["float32", "onnx", "early"]
    assert variants.named(with_early, "early") == "early"
    assert variants.describe(with_early, {})[-1].speed == 0.4


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("avx512_bf16", ["float32", "onnx", "bfloat16"]),
        ("amx_bf16", ["float32", "onnx", "bfloat16"]),
        ("avx512_vnni", ["float32", "onnx"]),
    ],
)
def test_auto_leaves_out_what_the_processor_cannot_multiply(
    edit_manifest, monkeypatch, caplog, flags, expected
):
    def add(manifest):
        first = manifest["variants"][0]
        half = {"name": "bfloat16", "kind": "paddle-inference-bfloat16", "files": first["files"]}
        half.update(runs_on=["x86"], needs=["avx512_bf16", "amx_bf16"])
        known = {"data": "dev.tsv", "n": 10, "accuracy": 0.9, "float32_accuracy": 0.9}
        manifest["variants"].append({**half, "accuracy": [known]})

    bundle = bundles.read(edit_manifest(add))
    monkeypatch.setattr(environment, "cpuinfo", lambda: f"flags : avx2 {flags}")
    monkeypatch.setattr(variants, "_architecture", lambda: "x86")
    with caplog.at_level(logging.INFO):
        assert variants.candidates(bundle, "cpu") == expected
    told = f"variant bfloat16 of {bundle.root} is left out: the processor has none of avx512_bf16, "
    assert (told in caplog.text) == ("bfloat16" not in expected)


def test_what_leaving_early_saves_counts_where_variants_are_chosen(with_early):
    assert variants.times_faster(with_early.variant("early")) == 1.6
    assert variants.times_faster(with_early.variant("float32")) == 1.0


def test_a_kind_that_nothing_opens_is_not_served(edit_manifest):
    def add(manifest):
        manifest["variants"].append({**manifest["variants"][0], "name": "x", "kind": "x"})

    with pytest.raises(UserError, match=r"x of bundle .* not served"):
        variants.named(bundles.read(edit_manifest(add)), "x")
