"""A finished job that is run again: told from its files, in a process that loads no Paddle."""

from __future__ import annotations

import shutil
from pathlib import Path

import fresh
import pytest
import tiny_job

from fleetbert import config
from fleetbert.training import finished, job

CODE = """
import sys
from fleetbert.cli import main
try:
    main.main(sys.argv[1:])
finally:
    print("paddle" in sys.modules)
"""


@pytest.fixture(scope="module")
def keys(tiny_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    shutil.copy(tiny_data / "train.tsv", folder)
    keys = {
        "data.train": str(folder / "train.tsv"),
        "data.max_length": 16,
        "model.vocab": str(tiny_data / "vocab.txt"),
        **{f"model.{name}": value for name, value in tiny_job.SHAPE.items()},
        "trainer.max_steps": 2,
        "trainer.device": "cpu",
        "output_dir": str(folder / "output"),
    }
    job.train(config.from_keys(config.Config, keys))
    return keys


def is_finished(keys, **changes):
    given = {name.replace("__", "."): value for name, value in changes.items()}
    return finished.is_finished(config.from_keys(config.Config, {**keys, **given}))


def test_a_finished_job_loads_no_paddle(keys):
    words = [f"{name}={value}" for name, value in keys.items()]
    ran = fresh.python(CODE, "train", *words)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["False"]
    assert "nothing is left to train: step 2 is done" in ran.stderr


def test_another_job_or_changed_files_are_not_finished(keys, tmp_path):
    assert is_finished(keys)
    assert not is_finished(keys, trainer__max_steps=3)
    assert not is_finished(keys, trainer__resume="none")
    output = shutil.copytree(keys["output_dir"], tmp_path / "moved")
    assert not is_finished(keys, output_dir=str(output))
    assert not is_finished(keys, output_dir=str(tmp_path / "none"))
    for name in ("report.html", "bundle/manifest.json"):
        result = Path(keys["output_dir"]) / name
        result.rename(tmp_path / "away")
        assert not is_finished(keys)
        (tmp_path / "away").rename(result)
    assert is_finished(keys)
    shutil.copy2(keys["data.train"], tmp_path / "same.tsv")
    shutil.copy2(tmp_path / "same.tsv", keys["data.train"])  # its own time stays, not its change's
    assert not is_finished(keys)
