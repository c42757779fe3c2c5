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
from servers import starting, steps_logged

KILLS = int(os.environ.get("FLEETBERT_PS_KILLS", "20"))
SEED = int(os.environ.get("FLEETBERT_SEED", "0"))
CLOSE = 0.015  # of accuracy
JOB = {"trainer.epochs": 12, "trainer.checkpoint_every": 20, "trainer.eval_every": 50}


class Kill(NamedTuple):
    mode: str
    victim: str
    restarts: int  # that are allowed
    step: int  # that the job has logged before it; 0: while it starts
    more: float  # seconds after that, or after the victim's start


def plan(steps: int) -> list[Kill]:
    """For jobs of so many steps."""
    chance = random.Random(SEED)
    kills = []
    for _ in range(KILLS):
        mode = chance.choice(["async", "sync"])
        victim = chance.choice(["server.0", "server.1", "trainer.0", "trainer.1"])
        restarts, early = chance.choice([0, 3, 3]), chance.random() < 0.25
        step = 0 if early else chance.randrange(1, steps)
        longest = 6 if early else 0.05  # about a step
        kills.append(Kill(mode, victim, restarts, step, chance.random() * longest))
    return kills


class End(NamedTuple):
    accuracy: float | None  # of a job that ended right
    steps: int
    said: str
    killed: bool  # the victim was there to be killed


def run(start, data, mode, kill=None) -> End:
    changes = {**JOB, "strategy.mode": mode, "data.dev": str(data / "many-dev.tsv")}
    job, killed = start(changes, restarts=kill.restarts if kill else 0), False
    if kill:
        job.wait_for(lambda: job.starts(kill.victim))
        job.wait_for(lambda: len(steps_logged(job)) >= kill.step or job.popen.poll() is not None)
        time.sleep(kill.more)
        with contextlib.suppress(ProcessLookupError):
            job.kill(kill.victim)
            killed = True
    code = job.ended()
    assert job.is_clean(), job.left()
    if code == 0:
        summary = json.loads((job.output / "summary.json").read_text())
        found = summary["dev"]["accuracy"]
        return End(found, summary["steps"], f"accuracy {found:.4f}", killed)
    said = re.search(r"^launch: (.*): the job ends with exit code (\d+)$", job.stderr, re.MULTILINE)
    assert said and int(said[2]) == code, job.stderr
    return End(None, 0, f"exit code {code}: {said[1]}", killed)


@pytest.mark.timeout(4 * 3600)
def test_every_killed_job_ends_right_or_says_why(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(launched, "DEADLINE", 3600)  # of a job, on a busy machine
    data = tmp_path / "data"
    data.mkdir()
    tiny_job.write_data(data)
    tiny_job.write_table(data / "many-dev.tsv", 800, 7)  # more texts to judge by
    with starting(tmp_path, data) as start:
        undisturbed = {mode: run(start, data, mode) for mode in ("async", "sync")}
        steps = {end.steps for end in undisturbed.values()}
        assert len(steps) == 1, undisturbed
        for number, kill in enumerate(plan(max(steps))):
            expected, end = undisturbed[kill.mode], run(start, data, kill.mode, kill)
            with capfd.disabled():
                print(f"\njob {number}: {kill}: {end} (undisturbed {expected.said})", end="")
            if end.accuracy is None:  # with a restart left it should have gone on
                assert end.killed and not kill.restarts, end
            else:
                assert end.steps == expected.steps
                assert abs(end.accuracy - expected.accuracy) <= CLOSE, end
