"""The C++ programs of deploy/lite, for this processor; some tests run them emulated, for boards'.

FLEETBERT_LITE_BUILDS names other kinds of `lite_build.KINDS`.
"""

from __future__ import annotations

import functools

import lite_build
import pytest
from boards import write_bundle


@pytest.fixture(scope="session", params=lite_build.CHOSEN or ["here"])
def programs(request) -> lite_build.Build:
    """The programs, built once."""
    return lite_build.build(request.param)


@pytest.fixture(scope="session")
def here(programs) -> str:
    """The processor that the programs are for."""
    return programs.target


@pytest.fixture
def make(here, tmp_path):
    """`boards.write_bundle` in the test's folder, for that processor."""
    return functools.partial(write_bundle, tmp_path, targets=(here,))


@pytest.fixture
def lite(programs):
    """Run fleetbert-lite with these words; text is its input."""
    return functools.partial(programs.run, "fleetbert-lite")


@pytest.fixture
def predict(lite):
    """Run its predict for a bundle, further words and a text, with the fake engine."""
    return functools.partial(lite, "predict", "--engine=fake", "--bundle")
