"""How the processors are shared out between workers, and which variants may answer."""

from __future__ import annotations

import os

import pytest

from fleetbert import bundle as bundles
from fleetbert.deploy.inference import variants
from fleetbert.deploy.inference.settings import Engine
from fleetbert.deploy.inference.variants import share_processors
from fleetbert.errors import UserError


@pytest.mark.parametrize(
    ("processors", "settings", "expected"),
    [
        (2, {}, [(0,), (1,)]),
        (20, {}, [(2 * n, 2 * n + 1) for n in range(8)]),  # no more than eight, with threads
        (8, {"workers": 3}, [(0, 1), (2, 3), (4, 5)]),
        (8, {"threads": 4}, [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (2, {"threads": 4}, [()]),  # more threads than there are: not pinned
        (2, {"workers": 4}, [(), (), (), ()]),
        (2, {"pin": False}, [(), ()]),
        (4, {"device": "gpu"}, [(0, 1, 2, 3)]),
    ],
)
def test_each_worker_has_processors_of_its_own(monkeypatch, processors, settings, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)))
    shares, threads = share_processors(Engine(**settings))
    assert list(shares) == expected
    assert all(len(share) in (0, threads) for share in shares)


def test_early_exit_is_not_served(edit_manifest):
    def add(manifest):
        trusted = manifest["variants"][0]
        early = {**trusted, "name": "early", "kind": "paddle-inference-early-exit"}
        manifest["variants"].append({**early, "accuracy": []})

    bundle = bundles.read(edit_manifest(add))
    assert variants.candidates(bundle, "cpu") == ["float32", "onnx"]
    with pytest.raises(UserError, match=r"early of bundle .* not served"):
        variants.named(bundle, "early")
    assert variants.named(bundle, "onnx") == "onnx"
