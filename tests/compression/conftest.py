"""What tests of several methods start from."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tiny_job


@pytest.fixture(scope="session")
def trained(tmp_path_factory, tiny_data) -> Path:
    """The bundle of the tiny job: a classifier that is right. Do not change it."""
    from paddle.utils import unique_name

    from fleetbert.training.job import train

    output = tmp_path_factory.mktemp("trained")
    job = tiny_job.job(tiny_data, output, {"trainer.epochs": 3, "trainer.seed": 1})
    with unique_name.guard():  # linear_0 is the first Linear, as in a process of its own
        train(job)
    return output / "bundle"


@pytest.fixture
def bundle(trained, tmp_path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(trained, tmp_path / "bundle"))
