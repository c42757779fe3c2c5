"""The server with Paddle Lite's engine, as on a board; here on x86."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import psutil
import pytest
import requests
from served import REAL, serving

from fleetbert.client import Client
from fleetbert.engines import answer

pytest.importorskip("paddlelite", reason="paddlelite has wheels for x86-64 and Python 3.8 to 3.10")

TEXTS = ["word1", "word2 word3 字1", "word4 " * 40, "!"] * 4


def loaded(process: psutil.Process, library: str) -> bool:
    return library in Path(f"/proc/{process.pid}/maps").read_text()


def test_it_answers_as_paddle_does(tiny_bundle, tmp_path):
    from fleetbert.compress.lite import export_lite

    path = Path(shutil.copytree(tiny_bundle, tmp_path / "models" / "tiny" / "1"))
    export_lite(path, "x86", "float32")
    words = [
        f"repository.path={path.parent.parent}",
        "repository.default.variant=lite-x86-float32",
        "engine.workers=1",
        "engine.threads=1",
    ]
    expected = answer.answer(answer.load(tiny_bundle), TEXTS)
    with serving(tmp_path, *words, command=REAL) as served:
        with Client(served.http) as client:
            found = client.infer("tiny", TEXTS)
        children = psutil.Process(served.process.pid).children(recursive=True)
        assert any(loaded(child, "paddlelite/lite.so") for child in children)
        metadata = requests.get(f"{served.http}/v2/models/tiny").json()
    assert [one.label for one in found] == [one.label for one in expected]
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one.logits, other.logits, atol=1e-4)
    assert "lite-x86-float32" in str(metadata)
