"""Two jobs with one output_dir: the second is refused at its start, and the first goes on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_job
from processes import DEADLINE, ROOT, SCRIPT, ended, kill, said, start, wait_for_loss

from fleetbert.train import job as training
from fleetbert.train.strategies.single import Single

LAUNCHER = ["--nproc_per_node", "2", "--backend", "gloo"]
LONG = {"trainer.epochs": 100_000, "data.dev": None}


@pytest.fixture
def job(tiny_data, tmp_path):
    """job(name, changes, ...) → a training of that name into `output`; all share it."""

    def call(name: str, changes: dict[str, object], **options):
        folder = tmp_path / name
        folder.mkdir()
        path = tiny_job.write_config(folder / "job.yaml", tiny_data, tmp_path / "output", changes)
        process = start(folder, path, **options)
        started.append(process)
        return process

    started: list = []
    yield call
    for process in started:
        kill(process)


def test_the_second_is_refused_until_the_first_is_gone(job, tmp_path):
    output = tmp_path / "output"
    first = job("first", LONG)
    wait_for_loss(first, output, 2)
    second = job("second", {"trainer.seed": 2})
    assert second.wait(DEADLINE) == 2
    (error,) = re.findall("^error: .*", said(second), re.M)
    assert re.search(f"output_dir: {output}: process {first.pid} ", error)
    assert f"{SCRIPT} --config" in error
    assert "choose another output_dir" in error
    exporting = start_export(tmp_path, output / "bundle")
    assert exporting[0] == 2
    assert f"process {first.pid} " in exporting[1]
    assert first.poll() is None
    kill(first)
    ended(job("third", {**LONG, "trainer.max_steps": 1}))
    assert not list(output.glob(".*"))


def start_export(folder: Path, root: Path) -> tuple[int, str]:
    """Write another bundle to where the job's will be."""
    code = (
        "import sys; from fleetbert import bundle, errors\n"
        "from fleetbert.data.tokenizers import of_vocab\n"
        "errors.run(lambda argv: bundle.create(argv[0], task='classification', labels=['a', 'b'],"
        " max_length=8, tokenizer=of_vocab(argv[1], True), fill=None))"
    )
    (folder / "vocab.txt").write_text("\n".join(tiny_job.VOCAB) + "\n")
    done = subprocess.run(
        [sys.executable, "-c", code, str(root), str(folder / "vocab.txt")],
        cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE,
    )  # fmt: skip
    return done.returncode, done.stderr


def check_refused(second) -> None:
    assert second.wait(DEADLINE) != 0
    assert re.search(r"^error: output_dir: .*: process \d+ .* is writing it", said(second), re.M)
    assert "the first rank could not go on" in said(second)


def test_all_ranks_are_refused_with_the_first_ones_sentence(job, tmp_path):
    """This process has the folder, as the first rank of a job has it."""
    with training.only_writer(Single("cpu"), tmp_path / "output"):
        second = job("second", {}, launcher=LAUNCHER)
        check_refused(second)
    assert f"process {os.getpid()} " in said(second)


@pytest.mark.endurance
def test_ranks_of_one_job_share_it(job, tmp_path):
    first = job("first", LONG, launcher=LAUNCHER)
    wait_for_loss(first, tmp_path / "output", 2)
    check_refused(job("second", {}, launcher=LAUNCHER))
    assert first.poll() is None
