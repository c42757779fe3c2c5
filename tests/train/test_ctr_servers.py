"""Clicks on servers, which alone have the table: real processes."""

from __future__ import annotations

import json
from pathlib import Path

import clicks_job
import numpy as np
import pytest
import servers
import tiny_job

from fleetbert import config
from fleetbert.train import job as training
from fleetbert.train import rows

SERVERS = {"strategy.name": "parameter_server"}


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    """A folder of made clicks, and the best that any model can reach on its dev rows."""
    folder = tmp_path_factory.mktemp("clicks")
    return folder, clicks_job.write_data(folder)["dev"]


def run(clicks, folder: Path, changes, **counts) -> tuple[Path, str]:
    """The output folder of a job that went well, and what was said."""
    folder.mkdir(exist_ok=True)
    values = {**clicks_job.changes(clicks[0]), **SERVERS, **changes}
    path = tiny_job.write_config(folder / "job.yaml", clicks[0], folder / "output", values)
    process = servers.start(folder, path, **counts)
    try:
        said = servers.ended(process)
    finally:
        servers.kill(process)
    return folder / "output", said


def test_two_trainers_take_the_steps_of_one_process_also_when_resumed(clicks, tmp_path):
    """Rows that enter when seen thirty times, by either of them; the second start, of one trainer
    and one server, gets the table from the checkpoint."""
    few = {
        **clicks_job.SGD, "data.train": str(clicks[0] / "few.tsv"), "trainer.epochs": 1,
        "strategy.mode": "sync",
    }  # fmt: skip
    run(clicks, tmp_path / "servers", {**few, "trainer.max_steps": 10})
    output, _ = run(clicks, tmp_path / "servers", few, servers=1, trainers=1)
    values = tiny_job.values(
        clicks[0], tmp_path / "local",
        {**clicks_job.changes(clicks[0]), **few, "strategy.mode": "async"},
    )  # fmt: skip
    local = training.train(config.Config.model_validate(values))
    expected = tiny_job.losses(tmp_path / "local")
    assert sorted(expected) == list(range(1, 21))
    assert tiny_job.losses(output) == pytest.approx(expected, abs=1e-5)
    summary = json.loads((output / "summary.json").read_text())
    assert summary["dev"]["auc"] == pytest.approx(local["dev"]["auc"], abs=1e-4)
    tables = [
        rows.opened(path / "checkpoints" / "step-00000020" / "rows.bin", 7)
        for path in (output, tmp_path / "local")
    ]
    assert (tables[0]["id"] == tables[1]["id"]).all()
    weights = [table["row"][:, rows.WEIGHTS :] for table in tables]
    np.testing.assert_allclose(*weights, rtol=0, atol=1e-5)
    moved = (weights[1] != 0).any(axis=1)
    assert 0.2 < moved.mean() < 1  # some of the ids had no row yet
    assert np.abs(weights[1]).max() > 0.01


@pytest.mark.parametrize("mode", ["async", "geo"])
def test_it_comes_close_to_the_best_auc(clicks, tmp_path, mode):
    changes = {"strategy.mode": mode, "strategy.k_steps": 2, "optimizer.learning_rate": 2e-3}
    output, said = run(clicks, tmp_path, changes)
    best = json.loads((output / "summary.json").read_text())["dev"]
    assert best["n"] == clicks_job.DEV_ROWS
    assert clicks[1]["best_auc"] - 0.05 < best["auc"] < clicks[1]["best_auc"] + 0.005, said
