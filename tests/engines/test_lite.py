"""Paddle Lite's engine, opened as any other variant is."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from pathlib import Path

import fresh
import numpy as np
import pytest
import same_answers
from served import REAL, serving, settings_of
from tiny_bert import WORDS, add_early_exit

from fleetbert import bundle as bundles
from fleetbert.client import Client
from fleetbert.core.errors import UserError
from fleetbert.engines import answer, engine

pytest.importorskip("paddlelite", reason="paddlelite has wheels for x86-64 and Python 3.8 to 3.10")

from fleetbert.export.lite import export_lite

TEXTS = ["word1 word2 word3", "word4", " ".join(f"word{number}" for number in range(60)), "字3"] * 5


@pytest.fixture(scope="module")
def lite_bundle(tiny_bundle, tmp_path_factory) -> Path:
    """The tiny bundle with a variant for this processor. Do not change it."""
    path = Path(shutil.copytree(tiny_bundle, tmp_path_factory.mktemp("lite") / "bundle"))
    export_lite(path, "x86", "float32")
    return path


def test_texts_get_the_answers_of_paddle_whatever_the_threads(lite_bundle):
    paddle = answer.compute_logits(answer.load(lite_bundle), TEXTS, None).values
    for threads in (1, 2):
        lite = answer.load(lite_bundle, "lite-x86-float32", threads=threads)
        found = answer.compute_logits(lite, TEXTS, None).values
        np.testing.assert_allclose(found, paddle, atol=1e-4)


def test_answers_stay_when_the_next_is_asked(lite_bundle):
    opened = engine.open_folder("paddle-lite", lite_bundle / "lite-x86-float32", "cpu", 1)
    first = opened(np.full((2, 16), 7), np.zeros((2, 16), np.int64))
    kept = first.copy()
    opened(np.full((2, 16), 9), np.zeros((2, 16), np.int64))
    np.testing.assert_array_equal(first, kept)


def test_a_model_of_another_processor_is_refused(lite_bundle, monkeypatch):
    bundle = bundles.read(lite_bundle)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(UserError, match="lite-x86-float32 is for x86 and this machine is armv8"):
        engine.open(bundle, "lite-x86-float32")
    engine.open(bundle, "float32")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")  # nobody knows: it is tried
    engine.open(bundle, "float32")


def test_what_it_cannot_do_is_said(lite_bundle, monkeypatch):
    bundle = bundles.read(lite_bundle)
    with pytest.raises(UserError, match="use --device cpu"):
        engine.open(bundle, "lite-x86-float32", "gpu")
    with pytest.raises(UserError, match="threads is 0"):
        engine.open(bundle, "lite-x86-float32", threads=0)
    monkeypatch.setitem(sys.modules, "paddlelite", None)
    with pytest.raises(UserError, match=r"Python 3\.8 to 3\.10 .* paddlelite==2\.13rc0"):
        engine.open(bundle, "lite-x86-float32")


@pytest.mark.slow
def test_texts_leave_where_they_leave_the_variant_for_paddle(tiny_bundle, tmp_path):
    path = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    add_early_exit(path)
    export_lite(path, "x86", "float32", early_exit=True)
    random = np.random.default_rng(1)
    texts = [" ".join(random.choice(WORDS, random.integers(1, 60))) for _ in range(200)]
    for speed, layers in ((None, {1, 2}), (0.0, {2})):
        expected, found = (
            answer.compute_logits(answer.load(path, variant, speed=speed), texts, None)
            for variant in ("early-exit-float32", "lite-x86-float32-early-exit")
        )
        assert {*expected.exit_layers.tolist()} == layers
        same = found.exit_layers == expected.exit_layers  # one may be at the very threshold
        assert same.sum() >= len(same) - 1
        np.testing.assert_allclose(found.values[same], expected.values[same], atol=1e-4)


def test_the_command_answers_without_importing_paddle(lite_bundle):
    code = (
        "import sys\nfrom fleetbert.cli import main as cli\n"
        "try:\n    cli.main(sys.argv[1:])\n"
        "finally:\n    print([name for name in ('paddle', 'paddlenlp') if name in sys.modules])"
    )
    words = ["predict", "--bundle", lite_bundle, "--variant", "lite-x86-float32", "--input", "-"]
    done = fresh.python(code, *words, stdin="\n".join(TEXTS) + "\n")
    assert done.returncode == 0, done.stderr
    *lines, imported = done.stdout.splitlines()
    assert imported == "[]"
    expected = answer.answer(answer.load(lite_bundle), TEXTS)
    assert [json.loads(line)["label"] for line in lines] == [found.label for found in expected]


@pytest.mark.slow
def test_the_server_answers_with_it(lite_bundle, tmp_path):
    path = tmp_path / "models" / "tiny" / "1"
    shutil.copytree(lite_bundle, path)
    words = settings_of(path.parents[1], "repository.default.variant=lite-x86-float32")
    expected = answer.answer(answer.load(lite_bundle), TEXTS)
    with serving(tmp_path, *words, command=REAL) as served, Client(served.http) as client:
        found = client.infer("tiny", TEXTS)
        assert "lite-x86-float32" in str(client.metadata("tiny"))
    same_answers.check(found, expected, 1e-4)
