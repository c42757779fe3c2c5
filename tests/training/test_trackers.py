"""The real trackers, in the environment of `make venv-clients`; and training beside them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_job

from fleetbert.core.errors import UserError
from fleetbert.training import trackers

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-clients" / "bin" / "python"


@pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-clients here: run `make venv-clients`")
def test_a_run_that_goes_on_is_one_run_in_every_tracker(tmp_path):
    done = subprocess.run(
        [PYTHON, ROOT / "tests" / "track.py", tmp_path], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    third = round(1 / 3, 4)
    assert [(step, round(value, 4)) for step, value in found["mlflow"]] == [
        (1, 1.0), (2, 0.5), (3, third), (3, third), (4, 0.25),
    ]  # fmt: skip
    assert found["mlflow_runs"] == [["FINISHED", {"optimizer.learning_rate": "5e-05"}]]
    assert [[step, value] for step, _, value in found["tensorboard"]] == [
        [1, 1.0], [2, 0.5], [3, third], [3, third], [4, 0.25],
    ]  # fmt: skip
    assert {"dev/good", "gradient/weight"} < set(found["tags"])
    assert found["wandb"] == [True, True]
    assert set(found["ids"]) == {"mlflow", "wandb"}


class Noted(trackers.Tracker):
    made: list = []  # noqa: RUF012  the test looks at it

    def __init__(self, folder, target, config, resumed_at):
        self.what = (target, config["optimizer.learning_rate"], resumed_at)
        self.figures, self.closed = {}, 0
        self.made.append(self)

    def log(self, step, figures):
        self.figures.setdefault(step, {}).update(figures)

    def close(self):
        self.closed += 1


def test_training_tells_them_its_figures(tiny_data, tmp_path, monkeypatch):
    from fleetbert import config
    from fleetbert.training import job as training

    monkeypatch.setitem(trackers.KINDS, "mlflow", Noted)
    monkeypatch.setattr(training, "_write_results", lambda run, summary: None)
    changes = {"callbacks.mlflow": "films", "trainer.checkpoint_every": 5}
    job = config.Config.model_validate(tiny_job.values(tiny_data, tmp_path, changes))
    training.train(job)
    training.train(job)  # nothing is left
    first, again = Noted.made
    assert (first.what, again.what) == (("films", 2e-3, 0), ("films", 2e-3, 10))
    assert (first.closed, again.closed) == (1, 1)
    losses = {step: row["train/loss"] for step, row in first.figures.items()}
    assert losses == tiny_job.losses(tmp_path)
    assert first.figures[10]["dev/accuracy"] >= 0.5


def test_all_are_closed_also_when_one_fails(tmp_path):
    from fleetbert.training.callbacks.tracking import Tracking

    class Failing(Noted):
        def close(self):
            super().close()
            raise OSError(28, "No space left on device")

    callback = Tracking({})
    config = {"optimizer.learning_rate": 1.0}
    opened = [of(tmp_path, "", config, 0) for of in (Noted, Failing, Noted)]
    callback.open = dict(zip("abc", opened))
    with pytest.raises(UserError, match=r"/b: cannot be written: No space"):
        callback.close(SimpleNamespace(folder=tmp_path))
    assert [tracker.closed for tracker in opened] == [1, 1, 1]


@pytest.mark.parametrize(
    ("kind", "module", "package"),
    [
        ("visualdl", "visualdl", "visualdl"),
        ("tensorboard", "tensorboardX", "tensorboardX"),
        ("mlflow", "mlflow", "mlflow-skinny"),
        ("wandb", "wandb", "wandb"),
    ],
)
def test_a_library_that_is_not_there_is_named(tmp_path, monkeypatch, kind, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"callbacks.{kind}: {module} .* pip install {package}"):
        trackers.KINDS[kind](tmp_path, "films", {}, 0)
