"""Which variants may answer."""

from __future__ import annotations

import pytest

from fleetbert import bundle as bundles
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


def test_what_leaving_early_saves_counts_where_variants_are_chosen(with_early):
    assert variants.times_faster(with_early.variant("early")) == 1.6
    assert variants.times_faster(with_early.variant("float32")) == 1.0


def test_a_kind_that_nothing_opens_is_not_served(edit_manifest):
    def add(manifest):
        manifest["variants"].append({**manifest["variants"][0], "name": "x", "kind": "x"})

    with pytest.raises(UserError, match=r"x of bundle .* not served"):
        variants.named(bundles.read(edit_manifest(add)), "x")
