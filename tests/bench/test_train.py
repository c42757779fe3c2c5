"""A real run of `bench train`, where PyTorch is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_job

from fleetbert import cli
from fleetbert.bench import measure, train
from fleetbert.errors import UserError

PEER = Path(__file__).parents[2] / measure.DEFAULT_PEER


def has_torch(python: Path | str) -> bool:
    try:
        measure.check_peer(str(python), "bench train", ("torch", "transformers", "numpy"))
    except UserError:
        return False
    return True


@pytest.mark.skipif(not has_torch(PEER), reason=f"no {PEER}; `make venv-bench` makes it")
@pytest.mark.slow
def test_both_sides_train_from_the_same_start(tiny_data, tmp_path, capsys):
    config = tiny_job.write_config(tmp_path / "job.yaml", tiny_data, tmp_path / "output")
    words = ["--config", config, "--full", "--rounds", 2, "--threads", 1, "--peer-python", PEER]
    words += ["--json", tmp_path / "report.json", "trainer.epochs=4"]
    with pytest.raises(SystemExit) as caught:
        cli.main(["bench", "train", *map(str, words)])
    out, err = capsys.readouterr()
    assert caught.value.code == 0, err
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert len(report["segments"]) == 4
    for found in report["engines"].values():
        assert found["texts"] == 4 * 160 - train.WARM_UP * 16
        assert len(found["dev_accuracy"]) == 4
        assert found["dev_accuracy"][-1] > 0.7  # both learn
    assert "Accuracy on 60 dev texts after each epoch: PyTorch" in out
    assert not (tmp_path / "output").exists()


@pytest.mark.skipif(has_torch(sys.executable), reason="PyTorch is in this environment")
def test_a_peer_without_torch_is_one_clear_sentence(tmp_path):
    command = [sys.executable, "-m", "fleetbert.cli", "bench", "train"]
    done = subprocess.run(
        [*command, "--peer-python", sys.executable],
        capture_output=True,
        encoding="utf-8",
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: bench train needs a Python with torch, transformers")
    assert done.stderr.count("\n") == 1 and "`make venv-bench` makes one" in done.stderr


def test_rounds_get_as_many_steps_as_there_are(capsys):
    class Fake:
        def __init__(self, total: int):
            self.hello = {"total_steps": total}

    workers: dict = {"peer": Fake(160), "ours": Fake(161)}
    assert train._plan(workers, 40, 3, False) == {"peer": [45, 40, 40], "ours": [45, 40, 40]}
    assert train._plan(workers, 100, 3, False) == {"peer": [56, 51, 51], "ours": [56, 51, 51]}
    assert "51 steps a round instead of 100" in capsys.readouterr().err
    assert train._plan(workers, 100, 2, True) == {"peer": [80, 80], "ours": [80, 81]}
    with pytest.raises(UserError, match="too few for 200 rounds"):
        train._plan(workers, 100, 200, False)
