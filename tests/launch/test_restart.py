"""paddle.distributed.launch --max_restart: ranks killed, hung, wrong, orphaned."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import processes
import psutil
import pytest
import tiny_job
from processes import DEADLINE, ended, kill, rank, said, wait_for, wait_for_loss

JOB = {"trainer.epochs": 6, "trainer.checkpoint_every": 7, "trainer.eval_every": 25}
STEPS = 60


@pytest.fixture(scope="module")
def start(tmp_path_factory, tiny_data):
    """start(changes, restarts) → (Popen of a launcher with two ranks, output folder)."""
    started = []

    def call(changes, restarts=3):
        folder = tmp_path_factory.mktemp("job")
        config = tiny_job.write_config(
            folder / "job.yaml", tiny_data, folder / "output", {**JOB, **changes}
        )
        process = processes.start(
            folder, config, launcher=["--nproc_per_node", "2", "--max_restart", str(restarts)]
        )
        started.append(process)
        return process, folder / "output"

    yield call
    for process in started:
        kill(process)


@pytest.fixture(scope="module")
def undisturbed(start):
    process, output = start({})
    assert not re.search("(starting|trying) all again", ended(process))
    return output


def weights(output: Path) -> bytes:
    return (output / "checkpoints" / f"step-{STEPS:08d}" / "model.pdparams").read_bytes()


def family(process) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.endurance
def test_killed_and_hung_the_job_ends_as_if_nothing_had_been(start, undisturbed):
    """Rank 0 killed, rank 1 stopped so that it hangs: two restarts of two. test_train.py has one
    kill, test_supervisor.py the hang of a small script."""
    process, output = start({"strategy.hang_timeout": 12}, restarts=2)
    for number, step, how in ((0, 20, "SIGKILL"), (1, 40, "SIGSTOP")):
        wait_for_loss(process, output, step)
        victim = wait_for(lambda number=number: rank(process, number), process)
        victim.send_signal(signal.Signals[how])
        wait_for(lambda victim=victim: not victim.is_running(), process)
    text = ended(process)
    for number, what in enumerate(
        (
            r"rank 0 was killed \(SIGKILL, .*\)",
            r"rank 1 has not moved for 1\d s",
        ),
        1,
    ):
        then = f"starting all again, restart {number} of 2"
        assert re.search(rf"{what} \(at step \d+\); {then}", text), text
    found = re.search(r"done after restarts: 2; (\d+) of (\d+) steps were repeats", text)
    assert found, text
    assert int(found[2]) - int(found[1]) == STEPS
    assert int(found[1]) <= 2 * 7  # no more than what was done since a checkpoint
    assert weights(output) == weights(undisturbed)
    assert tiny_job.losses(output) == tiny_job.losses(undisturbed)


@pytest.mark.endurance
def test_a_kill_too_many_ends_the_job(start):
    """In every run by test_policy.py."""
    process, output = start({}, restarts=0)
    wait_for_loss(process, output, 3)
    children = family(process)
    rank(process, 1).kill()
    assert process.wait(timeout=DEADLINE) != 0
    assert re.search(r"rank 1 was killed .*; --max_restart 0 allows no more", said(process))
    assert not psutil.wait_procs(children, timeout=DEADLINE)[1]


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_no_rank_outlives_the_launcher(start, name):
    process, output = start({"trainer.epochs": 60})
    wait_for_loss(process, output, 3)
    children = family(process)
    assert len(children) == 4
    process.send_signal(signal.Signals[name])
    assert process.wait(timeout=DEADLINE) != 0
    assert not psutil.wait_procs(children, timeout=DEADLINE)[1]
    if name == "SIGTERM":
        assert re.search(r"stopped: SIGTERM: saved step \d+ of 600", said(process))


def test_a_users_error_is_not_tried_again(start, tmp_path):
    (tmp_path / "train.tsv").write_text("label\ttext_a\nno tab here\n")
    process, _ = start({"data.train": str(tmp_path / "train.tsv")})
    assert process.wait(timeout=DEADLINE) == 2
    text = said(process)
    assert re.search(r"error: .*train\.tsv:2: has 1 tab-separated columns", text)
    assert "; restart" not in text
