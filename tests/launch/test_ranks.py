"""launch/train.py in two ranks of paddle.distributed.launch: as one process, and ranks killed,
wrong, orphaned. What they train otherwise is in train/test_two_ranks.py."""

from __future__ import annotations

import json
import re

import psutil
import pytest
import tiny_job
from processes import DEADLINE, ended, rank, said, wait_for, wait_for_loss

JOB = {
    "trainer.epochs": 2, "trainer.checkpoint_every": 7, "callbacks.progress": True,
    "model.dropout": 0.0, "trainer.max_steps": 6, "trainer.eval_every": 3,
    "callbacks.profiler.enabled": True, "callbacks.visualdl": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def lost_a_rank(start, write):
    """(output folder, what was said) of two ranks of which one was killed on the way."""
    path, output = write({**JOB, "trainer.checkpoint_every": 2})
    process = start(path, ranks=2)
    victim = wait_for(lambda: rank(process, 0), process)
    wait_for_loss(process, output, 2)
    victim.kill()
    return output, ended(process)


def test_a_killed_rank_has_all_started_again(lost_a_rank):
    """`make endurance` kills either of them fifty times, and has some hang."""
    _, text = lost_a_rank
    again = r"rank 0 was killed \(SIGKILL, .*\) \(at step \d\); starting all again, restart 1 of 3"
    assert re.search(again, text), text
    done = re.search(r"done after restarts: 1; (\d+) of (\d+) steps were repeats", text)
    assert done and int(done[2]) - int(done[1]) == 6, text


def test_losses_are_those_of_one_process(lost_a_rank, here):
    """The same global batches; without dropout, whose masks are a rank's own."""
    outputs = lost_a_rank[0], here(JOB)
    found, expected = (tiny_job.losses(output) for output in outputs)
    assert len(expected) == 6
    assert found == pytest.approx(expected, abs=1e-4)
    found, expected = (
        {row["step"]: row["dev.loss"] for row in tiny_job.rows(output) if "dev.loss" in row}
        for output in outputs
    )
    assert set(found) == {3, 6}
    assert found == pytest.approx(expected, abs=1e-4)


def test_summary_and_profile_know_of_both(lost_a_rank):
    output, _ = lost_a_rank
    summary = json.loads((output / "summary.json").read_text())
    assert summary["world_size"] == 2
    assert summary["dev"]["n"] == 60
    assert summary["texts_per_s"] > 0
    profile = json.loads((output / "profile.json").read_text())
    assert [rank["rank"] for rank in profile["ranks"]] == [0, 1]
    records = (output / "visualdl").glob("vdlrecords.*")
    assert len(list(records)) <= 2  # of rank 0 alone, which started twice
    assert (output / "bundle" / "manifest.json").is_file()


@pytest.mark.slow
def test_the_launcher_is_killed_and_started_again(lost_a_rank, start, write, tmp_path):
    """No rank outlives it, and nothing is lost, bit for bit. Nor does it matter that they share a
    token cache and have batches collected for them."""
    ahead = {"data.cache": str(tmp_path), "data.num_workers": 1}
    path, output = write({**JOB, "trainer.checkpoint_every": 1, **ahead})
    process = start(path, ranks=2)
    wait_for_loss(process, output, 3)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    assert not psutil.wait_procs(children, timeout=DEADLINE)[1]
    assert not (output / "summary.json").exists()
    assert "resumed at step" in ended(start(path, ranks=2))
    both = output, lost_a_rank[0]
    assert tiny_job.losses(output) == tiny_job.losses(both[1])
    saved = [folder / "checkpoints" / "step-00000006" / "model.pdparams" for folder in both]
    assert saved[0].read_bytes() == saved[1].read_bytes()


@pytest.mark.slow
def test_a_launcher_that_is_asked_to_stop_has_the_ranks_save(start, write):
    path, output = write({**JOB, "trainer.epochs": 60, "trainer.max_steps": None})
    process = start(path, ranks=2)
    wait_for_loss(process, output, 3)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) == 4  # the ranks, and their supervisors
    process.terminate()
    assert process.wait(timeout=DEADLINE) != 0
    assert not psutil.wait_procs(children, timeout=DEADLINE)[1]
    assert re.search(r"stopped: SIGTERM: saved step \d+ of 600", said(process))


@pytest.mark.slow
def test_a_rank_that_is_asked_to_stop_ends_the_evaluation_of_all(start, write, tmp_path):
    """Batches of a text each, 3,000 of them; the evaluation is done when the run is resumed."""
    tiny_job.write_table(tmp_path / "dev.tsv", 3000, 2)
    dev = {"data.dev": str(tmp_path / "dev.tsv"), "data.eval_batch_tokens": 16}
    path, output = write(
        {**JOB, **dev, "trainer.max_steps": 3, "callbacks.profiler.enabled": False}
    )
    process = start(path, ranks=2)
    wait_for_loss(process, output, 3)
    rank(process, 1).terminate()
    assert process.wait(timeout=DEADLINE) == 143
    assert "stopped: SIGTERM: saved step 3 of 3" in said(process)
    assert not any("dev.loss" in row for row in tiny_job.rows(output))
    ended(start(path, ranks=2))
    assert [row["step"] for row in tiny_job.rows(output) if "dev.loss" in row] == [3]
