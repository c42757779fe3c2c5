"""Runs in this process, and what several files look at."""

from __future__ import annotations

import random as python_random
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
import tiny_job

from fleetbert import config
from fleetbert.training import job as training


@pytest.fixture(autouse=True)
def generators_as_before():
    """A run seeds the process's generators; other tests are not to depend on that."""
    states = np.random.get_state(), python_random.getstate()
    yield
    np.random.set_state(states[0])
    python_random.setstate(states[1])


class Trainer:
    """trainer(output, changes) trains the tiny job; by default without the export at its end."""

    def __init__(self, data: Path):
        self.data = data

    def job(self, output: Path, changes: dict[str, Any] | None = None) -> config.Config:
        return tiny_job.job(self.data, output, changes)

    def __call__(
        self, output: Path, changes: dict[str, Any] | None = None, results: bool = False
    ) -> dict[str, Any]:
        with pytest.MonkeyPatch.context() as patch:
            if not results:
                patch.setattr(training, "_write_results", lambda run, summary: None)
            summary = training.train(self.job(output, changes)).summary
        assert paddle.get_device() == "cpu"
        return summary


@pytest.fixture
def no_results(monkeypatch):
    """Runs write neither model nor bundle, which takes as long as their steps."""
    monkeypatch.setattr(training, "_write_results", lambda run, summary: None)


@pytest.fixture(scope="session")
def trainer(tiny_data) -> Trainer:
    return Trainer(tiny_data)
