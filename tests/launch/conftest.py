"""What tests of launchers need."""

from __future__ import annotations

import tempfile
from pathlib import Path

import launched
import pytest


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
