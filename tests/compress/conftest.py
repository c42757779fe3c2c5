"""What tests of several methods start from."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_job
from processes import SCRIPT
from tiny_bert import make_network

from fleetbert import program as programs


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


@pytest.fixture(scope="session")
def whole_program(tmp_path_factory) -> Path:
    """The program of a tiny random classifier."""
    from fleetbert.export import program as export

    path = tmp_path_factory.mktemp("whole")
    export.save_program(make_network(), path)
    return path


@pytest.fixture(scope="session")
def kept():
    """Two of four heads and 48 of 128 units in each of its two layers."""
    from fleetbert.compress.importance import Kept

    units = np.random.default_rng(0).permuted(np.tile(np.arange(128), (2, 1)), axis=1)
    return Kept(np.array([[0, 2], [1, 3]]), np.sort(units[:, :48], axis=1))


@pytest.fixture(scope="session")
def pruned_program(whole_program, kept, tmp_path_factory) -> Path:
    """That program with only these."""
    from fleetbert.compress import prune
    from fleetbert.model import from_program

    path = tmp_path_factory.mktemp("pruned")
    program = programs.read(whole_program / "model.pdmodel")
    arrays = programs.read_parameters(program, whole_program / "model.pdiparams")
    names = from_program.names(program, "tiny").parameters
    tensors = {names[name]: array for name, array in arrays.items()}
    narrow = prune.narrow_tensors(tensors, kept, 16)
    arrays = {name: narrow[own] for name, own in names.items()}
    prune.narrow_program(program, arrays, 2)
    programs.write(path / "model.pdmodel", program)
    (path / "model.pdiparams").write_bytes(programs.parameter_bytes(arrays))
    return path
