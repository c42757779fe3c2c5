"""The collective strategy trains what it has never heard of: ResNet-18, in two real ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_job

SCRIPT = Path(__file__).with_name("train_resnet.py")
LAUNCH = ("-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--backend", "gloo")


def train(folder: Path, launch: tuple[str, ...], *words: str) -> Path:
    """Run the script to its end; returns its output folder."""
    command = [sys.executable, *launch, str(SCRIPT), str(folder / "output"), *words]
    with (folder / "said.txt").open("wb") as said:
        done = subprocess.run(command, cwd=folder, stdout=said, stderr=said, timeout=480)
    logs = [folder / "said.txt", *sorted(folder.glob("log/workerlog.*"))]
    assert done.returncode == 0, "\n".join(log.read_text(errors="replace") for log in logs)
    return folder / "output"


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The losses of one process. It takes each step in two halves, as two ranks do: batch
    normalization looks at what is in a half."""
    return tiny_job.losses(train(tmp_path_factory.mktemp("one"), (), "2", "plain") / "plain")


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    return train(tmp_path_factory.mktemp("two"), LAUNCH, "1", "plain", "compiled")


@pytest.mark.parametrize("name", ["plain", "compiled"])
def test_images_train_as_in_one_process(expected, two_ranks, name):
    losses = tiny_job.losses(two_ranks / name)
    assert list(losses) == [1, 2, 3, 4, 5, 6]
    assert losses == pytest.approx(expected, rel=1e-3)
    assert losses[6] < losses[1]


def test_the_callbacks_knew_what_to_do(two_ranks):
    for name in ("plain", "compiled"):
        folder = two_ranks / name
        summary = json.loads((folder / "summary.json").read_text())
        assert (summary["world_size"], summary["dev"]["n"]) == (2, 12)
        assert summary["data"]["train"] == {"images": 64}
        assert {row["step"] for row in tiny_job.rows(folder) if "dev.loss" in row} == {3, 6}
        assert (folder / "checkpoints" / "step-00000006" / "manifest.json").is_file()
        assert len(json.loads((folder / "profile.json").read_text())["ranks"]) == 2
        assert list((folder / "visualdl").glob("*.log"))
