"""The C++ programs of deploy/lite, for this processor and, emulated, for boards'.

FLEETBERT_LITE_BUILDS names other kinds of `lite_build.KINDS`.
"""

from __future__ import annotations

import subprocess

import lite_build
import pytest


@pytest.fixture(scope="session", params=lite_build.CHOSEN)
def programs(request) -> lite_build.Build:
    """The programs, built once."""
    reason = lite_build.missing(request.param)
    if reason:
        pytest.skip(reason)
    return lite_build.build(request.param)


@pytest.fixture
def lite(programs):
    """Run fleetbert-lite with these words; text is its input."""

    def run(*words, text=""):
        command = programs.command("fleetbert-lite", *words)
        return subprocess.run(command, input=text.encode(), capture_output=True, timeout=300)

    return run
