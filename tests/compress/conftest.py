"""What tests of several methods start from."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_job
from processes import SCRIPT


@pytest.fixture(scope="session")
def trained(tmp_path_factory, tiny_data) -> Path:
    """The bundle of the tiny job: a classifier that is right. Do not change it."""
    output = tmp_path_factory.mktemp("trained")
    job = tiny_job.write_config(
        output / "job.yaml", tiny_data, output, {"trainer.epochs": 3, "trainer.seed": 1}
    )
    subprocess.run(
        [sys.executable, SCRIPT, "--config", job], check=True, capture_output=True, timeout=480
    )
    return output / "bundle"


@pytest.fixture
def bundle(trained, tmp_path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(trained, tmp_path / "bundle"))
