"""Clicks on servers, which alone have the table: real processes."""

from __future__ import annotations

import json
from pathlib import Path

import clicks_job
import launched
import numpy as np
import pytest
import servers
import tiny_job

from fleetbert import config
from fleetbert.train import job as training
from fleetbert.train import sparse_table

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
    local = training.train(config.Config.model_validate(values)).summary
    expected = tiny_job.losses(tmp_path / "local")
    assert sorted(expected) == list(range(1, 21))
    assert tiny_job.losses(output) == pytest.approx(expected, abs=1e-5)
    summary = json.loads((output / "summary.json").read_text())
    assert summary["dev"]["auc"] == pytest.approx(local["dev"]["auc"], abs=1e-4)
    tables = [
        sparse_table.opened(path / "checkpoints" / "step-00000020" / "rows.bin", 7)
        for path in (output, tmp_path / "local")
    ]
    assert (tables[0]["id"] == tables[1]["id"]).all()
    weights = [table["row"][:, sparse_table.WEIGHTS :] for table in tables]
    np.testing.assert_allclose(*weights, rtol=0, atol=1e-5)
    moved = (weights[1] != 0).any(axis=1)
    assert 0.2 < moved.mean() < 1  # some of the ids had no row yet
    assert np.abs(weights[1]).max() > 0.01


@pytest.mark.parametrize("mode", [pytest.param("async", marks=pytest.mark.endurance), "geo"])
def test_it_comes_close_to_the_best_auc(clicks, tmp_path, mode):
    changes = {
        "strategy.mode": mode, "strategy.k_steps": 2, "optimizer.learning_rate": 3e-3,
        "trainer.epochs": 1, "trainer.log_every": 10,
    }  # fmt: skip
    output, said = run(clicks, tmp_path, changes)
    best = json.loads((output / "summary.json").read_text())["dev"]
    assert best["n"] == clicks_job.DEV_ROWS
    assert clicks[1]["best_auc"] - 0.05 < best["auc"] < clicks[1]["best_auc"] + 0.005, said


@pytest.fixture
def launch(clicks, tmp_path):
    """launch(changes, script) → `launched.Started` with a server and two trainers, which write
    to `output` in its folder."""
    started = []

    def call(changes, script):
        folder = tmp_path / str(len(started))
        folder.mkdir()
        values = {**clicks_job.changes(clicks[0]), **SERVERS, **changes}
        path = tiny_job.write_config(folder / "job.yaml", clicks[0], folder / "output", values)
        options = ("--servers", "1", "--trainers", "2", "--max_restart", "1")
        words = ("--config", str(path))
        started.append(launched.Started(folder, script, *options, words=words))
        return started[-1]

    yield call
    for job in started:
        job.end()


# It trains for long, and when all have started again until the step that the test says.
TRAIN_AGAIN = f"""
first = starts.read_text().split()[2]
if run.name != first:
    wait_for(here / "steps")
    sys.argv.append("trainer.max_steps=" + (here / "steps").read_text())
{launched.TRAIN}"""


def logged(job: launched.Started) -> list[int]:
    """The steps in metrics.jsonl, whose last row may be half written."""
    path = job.folder / "output" / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [row["step"] for row in map(json.loads, lines) if "loss" in row]


@pytest.mark.endurance
def test_a_killed_server_starts_the_job_again_from_its_checkpoint(launch, clicks):
    """With the table, which nobody had but the servers. In every run: that a table comes from the
    checkpoint, above, and that a killed server has all started again, launch/test_launcher.py."""
    changes = {
        "trainer.epochs": 1000, "trainer.checkpoint_every": 60,
        "optimizer.schedule": "constant", "optimizer.warmup_ratio": 0.0,
    }  # fmt: skip
    job = launch(changes, TRAIN_AGAIN)
    output = job.folder / "output"
    job.wait_for(lambda: len(list(output.glob("checkpoints/step-*"))) > 1)
    job.kill("server.0")
    job.wait_for(lambda: len(job.starts("trainer.0")) > 1)  # nobody trains before there are `steps`
    newest = max(int(path.name[5:]) for path in output.glob("checkpoints/step-*"))
    (job.folder / "steps").with_suffix(".new").write_text(str(newest + 30))
    (job.folder / "steps").with_suffix(".new").rename(job.folder / "steps")
    assert job.ended() == 0, b"\n".join(job.merged).decode()
    assert "launch: server 0 was killed" in job.stderr
    assert job.stderr.endswith("launch: done after restarts: 1\n")
    summary = json.loads((output / "summary.json").read_text())
    assert (summary["resumed_at"], summary["steps"]) == (newest, newest + 30)
    assert logged(job) == list(range(1, newest + 31))
    # Adagrad's sums only grow: a table that had begun anew would have smaller ones.
    former, last = (
        sparse_table.opened(output / "checkpoints" / f"step-{step:08d}" / "rows.bin", 7)
        for step in (newest, newest + 30)
    )
    again = last[np.isin(last["id"], former["id"])]
    assert (again["id"] == former["id"]).all()
    sums = [table["row"][:, sparse_table.SQUARES] for table in (former, again)]
    assert (sums[1] >= sums[0] * (1 - 1e-6)).all()
    assert sums[1].sum() > sums[0].sum()
    job.wait_until_clean()


ATTEMPTS = 5


@pytest.mark.endurance
def test_a_killed_trainer_goes_on_with_the_others(launch, clicks):
    """In every run of BERT: test_parameter_server_rejoin.py."""
    for _ in range(ATTEMPTS):
        job = launch(
            {"strategy.mode": "sync", "trainer.log_every": 4, "trainer.epochs": 2}, launched.TRAIN
        )
        job.wait_for(lambda job=job: len(logged(job)) > 4)
        job.kill("trainer.1")
        assert job.ended() == 0, b"\n".join(job.merged).decode()
        text = b"\n".join(job.merged).decode()
        summary = json.loads((job.folder / "output" / "summary.json").read_text())
        assert summary["steps"] == 2 * -(-clicks_job.ROWS // 256)
        assert clicks[1]["best_auc"] - 0.05 < summary["dev"]["auc"]
        if "rank 1: goes on at step" in text:
            assert len(job.starts("server.0")) == 1
            return
        # The other was waiting for it just then: all began again.
        assert "was killed while the others waited for it" in text
    pytest.fail(f"in none of {ATTEMPTS} attempts it went on alone")
