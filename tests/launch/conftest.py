"""What tests of launchers need."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import launched
import numpy as np
import processes
import pytest
import tiny_job

from fleetbert.training import job as training


@pytest.fixture
def here(tiny_data, tmp_path):
    """here(changes) → the output folder of the tiny job in this process."""
    states = np.random.get_state(), random.getstate()

    def call(changes):
        return training.train(tiny_job.job(tiny_data, tmp_path / "here", changes)).output_dir

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


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """start(config, *words, ranks=1, **options of `processes.start`) → Popen; no process of it
    outlives the module's tests."""
    started = []

    def call(config: Path, *words: str, ranks: int = 1, **options: Any) -> Any:
        if ranks > 1:
            options["launcher"] = ["--nproc_per_node", str(ranks)]
        folder = tmp_path_factory.mktemp("started")
        process = processes.start(folder, config, *words, **options)
        started.append(process)
        return process

    yield call
    for process in started:
        processes.kill(process)


@pytest.fixture(scope="module")
def write(tiny_data, tmp_path_factory):
    """write(changes) → (config file of the tiny job, its output folder)."""

    def call(changes: dict[str, Any]) -> tuple[Path, Path]:
        folder = tmp_path_factory.mktemp("job")
        path = tiny_job.write_config(folder / "job.yaml", tiny_data, folder / "output", changes)
        return path, folder / "output"

    return call
