"""`fleetbert launch launch/train.py`: BERT trained on servers, with a process killed."""

from __future__ import annotations

import json

import pytest
import tiny_job
from launched import TRAIN
from processes import DEADLINE


@pytest.mark.slow
def test_training_goes_on_with_a_trainer_that_was_killed(launch, tiny_data, tmp_path):
    output = tmp_path / "output"
    changes = {
        "strategy.name": "parameter_server",
        "trainer.epochs": 6,
        "trainer.checkpoint_every": 5,
        "trainer.resume": "auto",
    }
    config = tiny_job.write_config(tmp_path / "job.yaml", tiny_data, output, changes)
    options = ("--servers", "2", "--trainers", "2", "--max_restart", "1")
    job = launch(TRAIN, *options, words=("--config", str(config)))
    job.wait_for(lambda: list(output.glob("checkpoints/step-*")))
    job.kill("trainer.1")
    assert job.popen.wait(timeout=DEADLINE) == 0, b"\n".join(job.merged).decode()
    assert "launch: trainer 1 was killed" in job.stderr
    assert job.stderr.endswith("launch: done after restarts: 1\n")
    assert list(tiny_job.losses(output)) == list(range(1, 61))
    assert json.loads((output / "summary.json").read_text())["steps"] == 60
    # Alone; or all, if the others were waiting for it just then (tests/train has each case).
    starts = {name: len(job.starts(name)) for name in ("trainer.0", "trainer.1")}
    alone = "starting it alone again, restart 1 of 1"
    together = "trying all again, which is no restart"
    assert alone in job.stderr
    assert starts == (
        {"trainer.0": 2, "trainer.1": 3}
        if together in job.stderr
        else {"trainer.0": 1, "trainer.1": 2}
    )
    assert job.is_clean()


@pytest.mark.slow
def test_a_killed_server_ends_training(launch, tiny_data, tmp_path):
    output = tmp_path / "output"
    changes = {"strategy.name": "parameter_server", "trainer.epochs": 500}
    config = tiny_job.write_config(tmp_path / "job.yaml", tiny_data, output, changes)
    options = ("--servers", "2", "--trainers", "2")
    job = launch(TRAIN, *options, words=("--config", str(config)))
    job.wait_for(lambda: (output / "metrics.jsonl").exists() and tiny_job.losses(output))
    job.kill("server.1")
    assert job.popen.wait(timeout=DEADLINE) == 137, job.stderr
    expected = "launch: server 1 was killed (SIGKILL, by someone or for want of memory); "
    assert job.stderr.endswith(
        f"{expected}--max_restart 0 allows no more: the job ends with exit code 137\n"
    )
    assert job.is_clean()
