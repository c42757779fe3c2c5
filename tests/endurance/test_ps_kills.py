"""`make endurance`: servers and trainers killed at random moments, one in each job.

Every job ends as good as an undisturbed one, or with a sentence and a code that is not 0; none
hangs, and no process is left. FLEETBERT_PS_KILLS (20) and FLEETBERT_SEED (0) set how many and
which.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import time
from typing import NamedTuple

import launched
import pytest
import tiny_job
from processes import DEADLINE, SCRIPT

KILLS = int(os.environ.get("FLEETBERT_PS_KILLS", "20"))
SEED = int(os.environ.get("FLEETBERT_SEED", "0"))
STEPS = 120
CLOSE = 0.015  # of accuracy
JOB = {
    "strategy.name": "parameter_server", "trainer.epochs": STEPS // 10,
    "trainer.checkpoint_every": 20, "trainer.eval_every": 50,
}  # fmt: skip
TRAIN = f"""
import runpy
runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
"""


class Kill(NamedTuple):
    mode: str
    victim: str
    restarts: int  # that are allowed
    step: int  # that the job has logged before it; 0: while it starts
    more: float  # seconds after that, or after the victim's start


def plan() -> list[Kill]:
    chance = random.Random(SEED)
    kills = []
    for _ in range(KILLS):
        mode = chance.choice(["async", "sync"])
        victim = chance.choice(["server.0", "server.1", "trainer.0", "trainer.1"])
        restarts, early = chance.choice([0, 3, 3]), chance.random() < 0.25
        step = 0 if early else chance.randrange(1, STEPS)
        kills.append(Kill(mode, victim, restarts, step, chance.random() * (6 if early else 0.05)))
    return kills


def start(folder, data, mode, restarts):
    folder.mkdir()
    changes = {**JOB, "strategy.mode": mode, "data.dev": str(data / "many-dev.tsv")}
    config = tiny_job.write_config(folder / "job.yaml", data, folder / "output", changes)
    options = ("--servers", "2", "--trainers", "2", "--max_restart", str(restarts))
    return launched.Started(folder, TRAIN, *options, words=("--config", str(config)))


def steps_logged(folder) -> int:
    path = folder / "output" / "metrics.jsonl"
    return path.read_text().count('"loss": ') if path.exists() else 0


def accuracy(folder) -> float:
    summary = json.loads((folder / "output" / "summary.json").read_text())
    assert summary["steps"] == STEPS
    return summary["dev"]["accuracy"]


@pytest.fixture
def data(tmp_path):
    """The tiny job's texts, with more of them to judge by."""
    folder = tmp_path / "data"
    folder.mkdir()
    tiny_job.write_data(folder)
    tiny_job.write_table(folder / "many-dev.tsv", 800, 7)
    return folder


def run(folder, data, mode, kill=None):
    """(how it ended, whether the victim was there to be killed, seconds)."""
    job = start(folder, data, mode, kill.restarts if kill else 0)
    began, killed = time.monotonic(), False
    try:
        if kill:
            job.wait_for(lambda: job.starts(kill.victim))
            job.wait_for(lambda: steps_logged(folder) >= kill.step or job.popen.poll() is not None)
            time.sleep(kill.more)
            with contextlib.suppress(ProcessLookupError):
                job.kill(kill.victim)
                killed = True
        code = job.popen.wait(timeout=DEADLINE)
        seconds = time.monotonic() - began
        assert job.is_clean(), job.left()
    finally:
        job.end()
    if code == 0:
        return f"accuracy {accuracy(folder):.4f}", killed, seconds
    said = re.search(r"^launch: (.*): the job ends with exit code (\d+)$", job.stderr, re.MULTILINE)
    assert said and int(said[2]) == code, job.stderr
    return f"exit code {code}: {said[1]}", killed, seconds


@pytest.mark.timeout(4 * 3600)
def test_every_killed_job_ends_right_or_says_why(data, tmp_path, capfd):
    undisturbed = {mode: run(tmp_path / mode, data, mode) for mode in ("async", "sync")}
    right = told = 0
    for number, kill in enumerate(plan()):
        expected, _, _ = undisturbed[kill.mode]
        end, killed, took = run(tmp_path / f"job-{number}", data, kill.mode, kill)
        with capfd.disabled():
            verb = "killed" if killed else "had ended"
            when = f"after step {kill.step}" if kill.step else f"{kill.more:.1f} s after its start"
            print(
                f"\njob {number}, {kill.mode}, {kill.victim} {verb} {when}, restarts "
                f"{kill.restarts}: {end} (undisturbed {expected}), {took:.0f} s",
                end="",
                flush=True,
            )
        if end.startswith("accuracy"):
            off = abs(float(end.split()[1]) - float(expected.split()[1]))
            assert off <= CLOSE, end
            right += 1
        else:
            assert killed and not kill.restarts, end  # with a restart left it should have gone on
            told += 1
    with capfd.disabled():
        print(f"\n{right} ended right, {told} said why they did not, of {KILLS}; none hung")
