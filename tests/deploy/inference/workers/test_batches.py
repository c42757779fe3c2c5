"""What a worker does with frames."""

from __future__ import annotations

import shutil

import pytest

from fleetbert import bundle as bundles
from fleetbert.core.errors import UserError, of_system
from fleetbert.deploy.inference.workers import batches


@pytest.mark.parametrize("file", ["model.pdmodel", "model.pdiparams", "model.onnx"])
def test_a_file_that_goes_away_while_it_is_opened_is_not_the_variants_fault(
    tiny_bundle, tmp_path, monkeypatch, file
):
    root = tmp_path / "bundle"
    shutil.copytree(tiny_bundle, root)
    variant = "onnx" if file.endswith("onnx") else "float32"
    head = {"bundle": str(root), "variant": variant, "device": "cpu", "threads": 1, "pad_id": 0}
    bundle = bundles.read(root)
    (root / variant / file).unlink()
    with pytest.raises(UserError, match="is missing") as before:
        batches._open(head)
    monkeypatch.setattr(bundles, "read", lambda _: bundle)  # it was there a moment ago
    with pytest.raises(Exception) as gone:
        batches._open(head)
    assert of_system(before.value) and of_system(gone.value)
