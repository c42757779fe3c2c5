"""Which variants may answer."""

from __future__ import annotations

import logging

import pytest

from fleetbert import bundle as bundles
from fleetbert.compat import environment
from fleetbert.core import device as devices
from fleetbert.core.device import CPU
from fleetbert.core.errors import UserError
from fleetbert.deploy.inference.repository import variants


@pytest.fixture
def added(edit_manifest):
    """The tiny bundle with an entry of one more variant, which is never opened."""

    def edit(name, **changes):
        def add(manifest):
            first = manifest["variants"][0]
            known = {"data": "dev.tsv", "n": 10, "accuracy": 0.9, "float32_accuracy": 0.9}
            usual = {"files": first["files"], "runs_on": first["runs_on"], "accuracy": [known]}
            manifest["variants"].append({"name": name, **usual, **changes})

        return bundles.read(edit_manifest(add))

    return edit


def test_early_exit_is_served_where_its_accuracy_is_known(added):
    what = {"ends": [1, 2], "speed": 0.4, "times_faster": 1.6}
    bundle = added("early", kind="paddle-inference-early-exit", **what)
    assert variants.candidates(bundle, CPU) == ["float32", "onnx", "early"]
    assert variants.named(bundle, "early") == "early"
    assert variants.describe(bundle, {})[-1].speed == 0.4
    # What leaving early saves counts where variants are chosen.
    assert variants.times_faster(bundle.variant("early")) == 1.6
    assert variants.times_faster(bundle.variant("float32")) == 1.0


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("avx512_bf16", ["float32", "onnx", "bfloat16"]),
        ("amx_bf16", ["float32", "onnx", "bfloat16"]),
        ("avx512_vnni", ["float32", "onnx"]),
    ],
)
def test_auto_leaves_out_what_the_processor_cannot_multiply(
    added, monkeypatch, caplog, flags, expected
):
    what = {"kind": "paddle-inference-bfloat16", "needs": ["avx512_bf16", "amx_bf16"]}
    bundle = added("bfloat16", runs_on=["x86"], **what)
    monkeypatch.setattr(environment, "cpuinfo", lambda: f"flags : avx2 {flags}")
    monkeypatch.setattr(variants, "_architecture", lambda: "x86")
    with caplog.at_level(logging.INFO):
        assert variants.candidates(bundle, CPU) == expected
    told = f"variant bfloat16 of {bundle.root} is left out: the processor has none of avx512_bf16, "
    assert (told in caplog.text) == ("bfloat16" not in expected)


def test_a_card_has_candidates_of_its_own(added):
    bundle = added("int8-static", kind="paddle-inference-int8", runs_on=["x86"])
    assert variants.candidates(bundle, devices.of("gpu:1", "float16")) == ["float32", "onnx"]
    int8 = devices.of("gpu", "int8", "auto")
    assert variants.candidates(bundle, int8) == ["int8-static"]


def test_a_kind_that_nothing_opens_is_not_served(added):
    with pytest.raises(UserError, match=r"x of bundle .* not served"):
        variants.named(added("x", kind="x"), "x")
