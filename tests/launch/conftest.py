"""What tests of launchers need."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import launched
import numpy as np
import pytest
import tiny_job

from fleetbert.config import Config
from fleetbert.train import job as training


@pytest.fixture
def here(tiny_data, tmp_path):
    """here(changes) → the output folder of the tiny job in this process."""
    states = np.random.get_state(), random.getstate()

    def call(changes):
        values = tiny_job.values(tiny_data, tmp_path / "here", changes)
        return training.train(Config.model_validate(values)).output_dir

    yield call
    np.random.set_state(states[0])
    random.setstate(states[1])


@pytest.fixture
def launch(tmp_path):
    """launch(body of the child, *options, words=(), environ={}) → `launched.Started`."""
    started = []

    def call(body, *options, **more):
        job = launched.Started(Path(tempfile.mkdtemp(dir=tmp_path)), body, *options, **more)
        started.append(job)
        return job

    yield call
    for job in started:
        job.end()
