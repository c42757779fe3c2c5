"""Paddle 2.6.2 and 3.3.1 read what the other wrote: bundles with their variants, checkpoints."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import other_paddle
import pytest

from fleetbert.compat import versions

pytestmark = pytest.mark.slow
# Of the logits' spread. On AVX2 all are equal. On AVX-512 3.3.1 rounded some int8 sums to other
# integers than 2.6.2, which a wrong scale or attribute would exceed by far.
APART = {"int8": 0.1, "float32": 1e-5}
ALIKE = 20  # steps whose losses are as good as equal; later ones grow apart where any bit differs


@pytest.fixture(scope="module")
def pythons() -> dict[str, Any]:
    """This Python and the other's. Both environments have to be there."""
    other = other_paddle.python(versions.is_paddle_3())
    which = "from fleetbert.compat import versions; print(versions.is_paddle_3())"
    try:
        said = subprocess.run([other, "-c", which], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"{other} is not there: `make venv PADDLE={3 - versions.is_paddle_3()}`")
    assert said.stdout.strip() == str(not versions.is_paddle_3())
    return {"here": sys.executable, "other": other}


@pytest.mark.parametrize(("maker", "user"), [("here", "other"), ("other", "here")])
def test_variants_answer_alike_and_a_killed_run_goes_on(pythons, tmp_path, maker, user):
    made = other_paddle.run(pythons[maker], "make", tmp_path)
    used = other_paddle.run(pythons[user], "use", tmp_path)
    assert list(made["logits"]) == list(other_paddle.VARIANTS)
    for name, expected in made["logits"].items():
        spread = np.ptp(expected)
        assert spread > 1  # texts are told apart
        atol = spread * APART["int8" if "int8" in name else "float32"]
        np.testing.assert_allclose(used["logits"][name], expected, atol=atol, err_msg=name)
    steps = [str(step) for step in range(1, 61)]
    for found in (made, used):
        assert list(found["losses"]) == steps
    losses = [[found["losses"][step] for step in steps] for found in (made, used)]
    np.testing.assert_allclose(losses[1][:ALIKE], losses[0][:ALIKE], rtol=1e-5)
    np.testing.assert_allclose(losses[1], losses[0], rtol=0.05, atol=0.02)
