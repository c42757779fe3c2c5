"""`make endurance`: random kills over ranks and steps, and a rank that is stopped so that the job
hangs; no job may end other than undisturbed.

FLEETBERT_KILLS (50) and FLEETBERT_SEED (0) set how many and which.
"""

from __future__ import annotations

import os
import random
import signal
import time

import processes
import pytest
import tiny_job
from processes import ended, kill, rank, wait_for, wait_for_loss

KILLS = int(os.environ.get("FLEETBERT_KILLS", "50"))
SEED = int(os.environ.get("FLEETBERT_SEED", "0"))
STEPS = 120
JOB = {
    "trainer.epochs": 12, "trainer.checkpoint_every": 7, "trainer.eval_every": 50,
    "strategy.hang_timeout": 30,
}  # fmt: skip


def plan() -> list[list[tuple[int, int, float]]]:
    """Jobs of one to three kills, each a rank, a step after the former kill's, and seconds more."""
    chance = random.Random(SEED)
    jobs: list[list[tuple[int, int, float]]] = []
    left = KILLS
    while left:
        number = min(left, chance.choice([1, 3, 3, 3]))
        steps = sorted(chance.sample(range(1, STEPS - 2), number))
        jobs.append([(chance.randrange(2), step, chance.random() * 0.05) for step in steps])
        left -= number
    return jobs


def run(folder, data, kills):
    """(final weights, losses) of a job under these kills."""
    folder.mkdir()
    config = tiny_job.write_config(folder / "job.yaml", data, folder / "output", JOB)
    launcher = ["--nproc_per_node", "2", "--max_restart", "3"]
    process = processes.start(folder, config, launcher=launcher)
    try:
        for number, step, more in kills:
            wait_for_loss(process, folder / "output", step)
            time.sleep(more)
            victim = wait_for(lambda number=number: rank(process, number), process)
            # A tenth of them hang instead.
            victim.send_signal(signal.SIGSTOP if more > 0.045 else signal.SIGKILL)
            wait_for(lambda victim=victim: not victim.is_running(), process)
        text = ended(process)
    finally:
        kill(process)
    assert ("done after restarts: " in text) == bool(kills), text
    weights = folder / "output" / "checkpoints" / f"step-{STEPS:08d}" / "model.pdparams"
    return weights.read_bytes(), tiny_job.losses(folder / "output")


@pytest.mark.timeout(4 * 3600)
def test_every_killed_job_ends_with_the_undisturbed_weights(tiny_data, tmp_path, capfd):
    expected = run(tmp_path / "undisturbed", tiny_data, [])
    different = 0
    for number, kills in enumerate(plan()):
        same = run(tmp_path / f"job-{number}", tiny_data, kills) == expected
        different += not same
        with capfd.disabled():
            places = ", ".join(f"rank {r} after step {s}" for r, s, _ in kills)
            print(f"\njob {number}, killed {places}: {'equal' if same else 'DIFFERENT'}", end="")
    assert not different
