"""What a worker does with frames."""

from __future__ import annotations

import shutil
import socket

import fake_card
import pytest

from fleetbert import bundle as bundles
from fleetbert.core import device as devices
from fleetbert.core.device import CPU
from fleetbert.core.errors import UserError, of_system
from fleetbert.deploy.inference.workers import batches

HEAD = {"device": CPU, "threads": 1, "pad_id": 0, "batch_tokens": 64}


@pytest.mark.parametrize("file", ["model.pdmodel", "model.pdiparams", "model.onnx"])
def test_a_file_that_goes_away_while_it_is_opened_is_not_the_variants_fault(
    tiny_bundle, tmp_path, monkeypatch, file
):
    root = tmp_path / "bundle"
    shutil.copytree(tiny_bundle, root)
    variant = "onnx" if file.endswith("onnx") else "float32"
    head = {**HEAD, "bundle": str(root), "variant": variant}
    bundle = bundles.read(root)
    (root / variant / file).unlink()
    with pytest.raises(UserError, match="is missing") as before:
        batches._open(head)
    monkeypatch.setattr(bundles, "read", lambda _: bundle)  # it was there a moment ago
    with pytest.raises(Exception) as gone:
        batches._open(head)
    assert of_system(before.value) and of_system(gone.value)


def test_a_worker_opens_a_variant_on_a_card(tiny_bundle, monkeypatch, tmp_path):
    """The frame that comes is JSON, in which a device is a list."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    created = fake_card.put_in(monkeypatch)
    device = list(devices.of("gpu:1", "float16", "auto"))
    more = {"aside": False, "batches": [(2, 16)]}
    head = {**HEAD, **more, "device": device, "bundle": str(tiny_bundle), "variant": "float32"}
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert batches.Worker(theirs).open(head)["layers"] == 2
    assert created[-1].called("enable_use_gpu")[0][1][1] == 1
    assert created[-1].called("enable_tensorrt_engine")
    (cache,) = (tmp_path / "fleetbert").iterdir()
    ranges = (cache / "shape_range_info.pbtxt").read_bytes()
    assert b"input_ids" in ranges
