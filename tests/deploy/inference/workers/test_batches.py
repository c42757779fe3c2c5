"""How a worker lays a batch out."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetbert import bundle as bundles
from fleetbert.core.errors import UserError, of_system
from fleetbert.data.batching import SAFE_LENGTHS, plan_inference, round_up
from fleetbert.deploy.inference.workers import batches

CALL_COST = 40  # of a call, in tokens


def lengths_in(lengths, packed):
    parts = batches._parts(np.array(lengths), packed, 2048)
    return [sorted(lengths[number] for number in part) for part in parts]


@given(st.lists(st.integers(2, 512), min_size=1, max_size=60), st.booleans())
def test_each_text_is_in_one_part(lengths, packed):
    parts = batches._parts(np.array(lengths), packed, 2048)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(lengths)))


@pytest.mark.parametrize("seed", range(5))
def test_what_came_at_once_is_batched_as_offline(seed):
    lengths = np.random.default_rng(seed).integers(3, 129, 200).tolist()

    def cost(parts):
        """In tokens: those of the rows, and what a call costs beside them."""
        return sum(CALL_COST + len(one) * round_up(max(one), SAFE_LENGTHS) for one in parts)

    offline = [[lengths[index] for index in part] for part in plan_inference(lengths, 2048)]
    ours = [part for start in range(0, 200, 50) for part in lengths_in(lengths[start:][:50], False)]
    assert cost(ours) <= 1.1 * cost(offline)


def test_texts_of_other_lengths_join_only_where_that_is_worth_the_padding():
    assert lengths_in([16] * 10 + [60] * 10, False) == [[16] * 10, [60] * 10]
    assert lengths_in([50, 60, 50], False) == [[50, 50, 60]]


def test_long_rows_are_not_shared_by_short_texts():
    assert lengths_in([20, 512, 20, 500] + [20] * 30, True) == [[20] * 32, [500, 512]]


@pytest.mark.parametrize("file", ["model.pdmodel", "model.pdiparams", "model.onnx"])
def test_a_file_that_goes_away_while_it_is_opened_is_not_the_variants_fault(
    tiny_bundle, tmp_path, monkeypatch, file
):
    root = tmp_path / "bundle"
    shutil.copytree(tiny_bundle, root)
    variant = "onnx" if file.endswith("onnx") else "float32"
    head = {"bundle": str(root), "variant": variant, "device": "cpu", "threads": 1}
    bundle = bundles.read(root)
    (root / variant / file).unlink()
    with pytest.raises(UserError, match="is missing") as before:
        batches._open(head)
    monkeypatch.setattr(bundles, "read", lambda _: bundle)  # it was there a moment ago
    with pytest.raises(Exception) as gone:
        batches._open(head)
    assert of_system(before.value) and of_system(gone.value)
