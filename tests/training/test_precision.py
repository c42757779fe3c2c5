"""Mixed precision on a device that has half: fp16sim."""

from __future__ import annotations

from pathlib import Path

import pytest
from fp16sim import run_pytest


@pytest.mark.slow
def test_inside(fp16sim):
    """Paddle has the device in a process of its own: on_fp16sim.py, beside this file."""
    run_pytest(Path(__file__).parent / "on_fp16sim.py", fp16sim)
