"""Golden texts of a variant: written with it, read back, and refused where they are damaged."""

from __future__ import annotations

import numpy as np
import pytest
from passes import texts_of

from fleetbert import bundle as bundles
from fleetbert.core.errors import UserError
from fleetbert.engines import engine, golden


def test_a_bundle_keeps_what_its_network_answered(tiny_bundle):
    bundle = bundles.read(tiny_bundle)
    kept = golden.read(bundle, "float32")
    assert kept.logits.shape == (3, len(bundle.labels))
    assert [len(ids) for ids in kept.ids] == [3, 17, 32]
    assert 0 < kept.bound <= 0.01 * max(1, np.abs(kept.logits).max()) * 1.0001
    opened = engine.open(bundle, "float32", threads=1)
    for ids, logits in zip(kept.ids, kept.logits):
        np.testing.assert_allclose(opened.run(texts_of(ids[None]))[0], logits, atol=1e-4)


def answer(ids, _):
    return np.stack([ids.sum(axis=1), -(ids > 0).sum(axis=1)], axis=1).astype(np.float32)


def test_the_bound_is_a_share_of_the_largest_logit():
    made = golden.record(answer, 20, 50, 0.1)
    assert [len(ids) for ids in made.ids] == [3, 11, 20]
    assert all(0 < token < 50 for ids in made.ids for token in ids)
    assert made.logits == [[sum(ids), -len(ids)] for ids in made.ids]
    assert made.bound == pytest.approx(0.1 * max(map(sum, made.ids)))
    small = golden.record(lambda ids, types: 0 * answer(ids, types) + 0.25, 20, 50, 0.1)
    assert small.bound == pytest.approx(0.1)


@pytest.mark.parametrize(
    "damage",
    [
        {"ids": None},
        {"ids": [[1, 2, 3]]},
        {"ids": [[1], [], [2]]},
        {"ids": [[1], [2], list(range(1, 100))]},
        {"ids": [[1], ["x"], [2]]},
        {"logits": [1.0, 2.0, 3.0]},
        {"logits": [[1.0], [2.0, 3.0], [4.0]]},
        {"logits": [[float("nan")]] * 3},
        {"bound": "wide"},
    ],
)
def test_damaged_golden_texts_are_refused(edit_manifest, damage):
    path = edit_manifest(lambda manifest: manifest["variants"][0]["golden"].update(damage))
    with pytest.raises(UserError, match=r"golden"):
        bundles.read(path)


def test_older_bundles_have_none(edit_manifest):
    path = edit_manifest(lambda manifest: manifest["variants"][0].pop("golden"))
    assert golden.read(bundles.read(path), "float32") is None
