"""The C++ program of deploy/cpp, built and run as its README says, has Python's logits."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from fleetbert import bundle as bundles
from fleetbert.engines import engine

README = Path(__file__).parents[2] / "deploy" / "cpp" / "README.md"
HAS_ALL = shutil.which("g++") and sysconfig.get_config_var("Py_ENABLE_SHARED")

pytestmark = pytest.mark.skipif(not HAS_ALL, reason="needs g++ and a Python with libpython")


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    """Built by the lines of the README's block up to the one that runs it."""
    folder = tmp_path_factory.mktemp("cpp")
    block = re.search(r"```\n(.*?)```", README.read_text(encoding="utf-8"), re.S)[1]
    build = block[: block.index("echo ")].replace("python=.venv/bin/python", "")
    build = build.replace("-o logits", f"-o {folder / 'logits'}")
    environment = {**os.environ, "python": sys.executable}
    subprocess.run(["bash", "-ec", build], check=True, cwd=README.parents[2], env=environment)
    return folder / "logits"


def run(program: Path, model: Path, text: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "GLOG_minloglevel": "2"}
    return subprocess.run(
        [str(program), str(model)], input=text, capture_output=True, text=True, env=environment
    )


@pytest.mark.slow
def test_its_logits_are_pythons(program, tiny_bundle):
    texts = [[2, 10, 11, 12, 3], [2, 40, 3], [2, *range(60, 90), 3]]
    lines = "".join(" ".join(map(str, text)) + "\n" for text in texts)
    done = run(program, tiny_bundle / "float32" / "model", lines)
    logits = np.array([line.split() for line in done.stdout.splitlines()], float)
    ids = np.zeros((3, 32), np.int64)
    for row, text in zip(ids, texts):
        row[: len(text)] = text
    expected = engine.open(bundles.read(tiny_bundle), threads=1)(ids, np.zeros_like(ids))
    np.testing.assert_allclose(logits, expected, atol=1e-4)
    missing = run(program, tiny_bundle / "float64" / "model", lines)
    assert (missing.returncode, missing.stderr.count("\n")) == (1, 1)
    assert "float64/model.pdmodel; name BUNDLE/float32/model" in missing.stderr
