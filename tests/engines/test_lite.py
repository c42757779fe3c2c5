"""Paddle Lite's engine, opened as any other variant is."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_bert import WORDS, add_early_exit

from fleetbert import bundle as bundles
from fleetbert.engines import answer, engine
from fleetbert.errors import UserError

pytest.importorskip("paddlelite", reason="paddlelite has wheels for x86-64 and Python 3.8 to 3.10")

TEXTS = ["word1 word2 word3", "word4", " ".join(f"word{number}" for number in range(60)), "字3"] * 5


@pytest.fixture(scope="module")
def lite_bundle(tiny_bundle, tmp_path_factory) -> Path:
    """The tiny bundle with a variant for this processor and one for another."""
    from fleetbert.compress.lite import export_lite

    path = Path(shutil.copytree(tiny_bundle, tmp_path_factory.mktemp("lite") / "bundle"))
    export_lite(path, "x86", "float32")
    export_lite(path, "armv8", "int8")
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
    with pytest.raises(UserError, match="lite-armv8-int8 is for armv8 and this machine is x86"):
        engine.open(bundle, "lite-armv8-int8")
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


def test_a_changed_model_is_not_opened(lite_bundle, tmp_path):
    path = Path(shutil.copytree(lite_bundle, tmp_path / "bundle"))
    model = path / "lite-x86-float32" / "model.nb"
    data = bytearray(model.read_bytes())
    data[-1] ^= 1
    model.write_bytes(data)
    with pytest.raises(UserError, match=r"lite-x86-float32/model\.nb is not the file"):
        engine.open(bundles.read(path), "lite-x86-float32")


@pytest.fixture(scope="module")
def early_bundle(tiny_bundle, tmp_path_factory) -> Path:
    """The tiny bundle with early exit for Paddle, and for Paddle Lite in two precisions."""
    from fleetbert.compress.lite import export_lite

    path = Path(shutil.copytree(tiny_bundle, tmp_path_factory.mktemp("early") / "bundle"))
    add_early_exit(path)
    for precision in ("float32", "int8"):
        export_lite(path, "x86", precision, early_exit=True)
    return path


def some_texts() -> list[str]:
    random = np.random.default_rng(1)
    return [" ".join(random.choice(WORDS, random.integers(1, 60))) for _ in range(200)]


def logits_of(path, variant, speed=None):
    return answer.compute_logits(answer.load(path, variant, speed=speed), some_texts(), None)


def test_early_exit_at_speed_0_answers_as_the_whole_program(early_bundle):
    found = logits_of(early_bundle, "lite-x86-float32-early-exit", 0.0)
    assert {*found.exit_layers.tolist()} == {2}
    np.testing.assert_allclose(found.values, logits_of(early_bundle, "float32").values, atol=1e-4)


def test_texts_leave_where_they_leave_the_variant_for_paddle(early_bundle):
    expected = logits_of(early_bundle, "early-exit-float32")
    found = logits_of(early_bundle, "lite-x86-float32-early-exit")
    assert {*expected.exit_layers.tolist()} == {1, 2}
    same = found.exit_layers == expected.exit_layers  # one may be at the very threshold
    assert same.sum() >= len(same) - 1
    np.testing.assert_allclose(found.values[same], expected.values[same], atol=1e-4)


def test_early_exit_in_int8_leaves_much_as_in_float32(early_bundle):
    expected = logits_of(early_bundle, "early-exit-float32")
    found = logits_of(early_bundle, "lite-x86-int8-early-exit")
    assert (found.exit_layers == expected.exit_layers).mean() > 0.9
    assert (found.values.argmax(1) == expected.values.argmax(1)).mean() > 0.9


def test_the_command_answers_without_importing_paddle(lite_bundle):
    code = (
        "import sys\nfrom fleetbert import cli\n"
        "try:\n    cli.main(sys.argv[1:])\n"
        "finally:\n    print([name for name in ('paddle', 'paddlenlp') if name in sys.modules])"
    )
    words = ["predict", "--bundle", lite_bundle, "--variant", "lite-x86-float32", "--input", "-"]
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        input="\n".join(TEXTS) + "\n",
        capture_output=True,
        text=True,
        timeout=480,
    )
    assert done.returncode == 0, done.stderr
    *lines, imported = done.stdout.splitlines()
    assert imported == "[]"
    expected = answer.answer(answer.load(lite_bundle), TEXTS)
    assert [json.loads(line)["label"] for line in lines] == [found.label for found in expected]
