"""What tests of several engines ask."""

from __future__ import annotations

import pytest
import shapes

from fleetbert import bundle as bundles
from fleetbert.engines import answer


@pytest.fixture(scope="session")
def model(tiny_bundle) -> answer.Model:
    """The tiny bundle's float32, opened."""
    return answer.load(tiny_bundle)


@pytest.fixture(scope="session")
def int8_bundle(tiny_bundle, tmp_path_factory) -> bundles.Bundle:
    """The tiny bundle with int8-static and early-exit-int8. Do not change it."""
    return shapes.add_int8_and_early_exit(tiny_bundle, tmp_path_factory.mktemp("int8"))
