"""`make endurance`: 2,000 batches of random shapes in random order, in float32, int8 and with early
exit. FLEETBERT_SEED (0) sets which."""

from __future__ import annotations

import os

import pytest
import shapes

SEED = int(os.environ.get("FLEETBERT_SEED", "0"))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("variant", ["float32", "int8-static", "early-exit-int8"])
def test_2000_shapes_are_answered_as_by_fresh_predictors(tiny_bundle, tmp_path, variant):
    bundle = shapes.add_int8_and_early_exit(tiny_bundle, tmp_path)
    # Twice what `predict` and `serve` put into a batch.
    shapes.check(bundle, variant, shapes.random_shapes(2000, 4096, SEED))
