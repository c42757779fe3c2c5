"""A disk that fills up, really: one sentence, nothing half written, what was there is whole."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import processes
import pytest
import tiny_job

from fleetbert import bundle
from fleetbert.core.errors import UserError
from fleetbert.training import checkpoint
from fleetbert.training import job as training
from fleetbert.training.callbacks import Callback, build

DRAWN = True  # see conftest.py

ALL = {
    "callbacks.visualdl": True, "callbacks.report": True, "callbacks.profiler.enabled": True,
    "trainer.epochs": 2, "trainer.max_steps": 12,
}  # fmt: skip


def fill(folder: Path, left: int) -> None:
    """Leave so many bytes free."""
    stat = os.statvfs(folder)
    (folder / "filler").write_bytes(bytes(max(0, stat.f_bavail * stat.f_frsize - left)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hook", "step", "left", "named"),
    [
        ("on_start", 0, 0, "metrics.jsonl|visualdl"),
        ("on_step", 12, 300_000, "checkpoint of step 12"),
        ("on_end", 12, 0, "profile.json"),
        ("on_end", 12, 200_000, "model"),
        ("on_end", 12, 700_000, "bundle"),
        ("on_end", 12, 1_020_000, "bundle|summary.json|report.html"),
    ],
)
def test_each_file_is_whole_or_absent(trainer, small_disk, monkeypatch, hook, step, left, named):
    """And with room again the same job ends well."""
    disk = small_disk("8m")
    output = disk / "output"

    def filling(_, run, *arguments):
        if run.state.step == step:
            fill(disk, left)

    first = type("First", (Callback,), {hook: filling})()
    monkeypatch.setattr(training, "build", lambda *given: [first, *build(*given)])
    with pytest.raises(UserError, match=f"({named}).* cannot be written.*No space left on device"):
        trainer(output, ALL, results=True)
    monkeypatch.undo()
    for path in checkpoint.listed(output / "checkpoints"):
        assert checkpoint.broken(path) is None
    saved = [checkpoint.step_of(path) for path in checkpoint.listed(output / "checkpoints")]
    assert saved == {"on_step": [10], "on_end": [10, 12]}.get(hook, [])
    for name in ("summary.json", "profile.json"):
        if (output / name).exists():
            json.loads((output / name).read_text())
    if (output / "bundle").exists():
        bundle.read(output / "bundle")
    names = {path.name for path in output.rglob("*")}
    assert not [name for name in names if name.startswith(".")]

    (disk / "filler").unlink()
    trainer(output, ALL, results=True)
    assert list(tiny_job.losses(output)) == list(range(1, 13))
    bundle.read(output / "bundle")


@pytest.mark.slow
def test_two_ranks_end_together_with_one_sentence(tiny_data, small_disk, tmp_path):
    """The second checkpoint does not fit. No rank waits for the one that could not write it."""
    output = small_disk("2m") / "output"
    changes = {"trainer.checkpoint_every": 4, "trainer.epochs": 100, "data.dev": None}
    path = tiny_job.write_config(tmp_path / "job.yaml", tiny_data, output, changes)
    process = processes.run(tmp_path, path, launcher=["--nproc_per_node", "2"])
    assert process.returncode != 0
    logs = [(tmp_path / "log" / f"workerlog.{rank}").read_text() for rank in (0, 1)]
    errors = [re.findall("^error: .*", log, re.M) for log in logs]
    assert [len(found) for found in errors] == [1, 1]
    assert "checkpoint of step 8: cannot be written to" in errors[0][0]
    assert "No space left on device; earlier checkpoints are untouched" in errors[0][0]
    assert errors[1][0] == "error: the first rank failed: see its messages"
    assert not [log for log in logs if "Traceback" in log]
    (left,) = (output / "checkpoints").iterdir()
    assert checkpoint.step_of(left) == 4
    assert checkpoint.broken(left) is None
