"""The device itself, in a process that has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fp16sim import run_pytest


@pytest.mark.slow  # it compiles
def test_device(fp16sim):
    run_pytest(Path(__file__).parent / "on_device.py", fp16sim)
