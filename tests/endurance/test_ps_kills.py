"""`make endurance`: servers and trainers killed at random moments, one in each job.

Every job ends as good as an undisturbed one, or with a sentence and a code that is not 0; none
hangs, and no process is left. FLEETBERT_PS_KILLS (20) and FLEETBERT_SEED (0) set how many and
which. The job is a tiny one, or, with a folder of train.tsv and dev.tsv in FLEETBERT_PS_DATA, an
epoch of configs/ps/bert_async.yaml or bert_sync.yaml.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import time
from pathlib import Path
from typing import NamedTuple

import launched
import pytest
import tiny_job
from processes import DEADLINE, ROOT

KILLS = int(os.environ.get("FLEETBERT_PS_KILLS", "20"))
SEED = int(os.environ.get("FLEETBERT_SEED", "0"))
DATA = os.environ.get("FLEETBERT_PS_DATA", "")
LIMIT = 3600 if DATA else DEADLINE  # seconds for a job
CLOSE = 0.015  # of accuracy
TINY = {
    "strategy.name": "parameter_server", "trainer.epochs": 12,
    "trainer.checkpoint_every": 20, "trainer.eval_every": 50,
}  # fmt: skip
WHOLE = {
    "trainer.epochs": 1, "trainer.checkpoint_every": 40, "trainer.log_every": 1,
    "callbacks.progress": False,
}  # fmt: skip


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
        longest = 6 if early else 1 if DATA else 0.05  # about a step
        kills.append(Kill(mode, victim, restarts, step, chance.random() * longest))
    return kills


def start(folder, data, mode, restarts):
    folder.mkdir()
    if DATA:
        config = ROOT / "configs" / "ps" / f"bert_{mode}.yaml"
        tables = {f"data.{part}": data / f"{part}.tsv" for part in ("train", "dev")}
        changes = {**WHOLE, **tables, "output_dir": folder / "output"}
        words = tuple(f"{key}={json.dumps(value, default=str)}" for key, value in changes.items())
    else:
        changes = {**TINY, "strategy.mode": mode, "data.dev": str(data / "many-dev.tsv")}
        config = tiny_job.write_config(folder / "job.yaml", data, folder / "output", changes)
        words = ()
    options = ("--servers", "2", "--trainers", "2", "--max_restart", str(restarts))
    return launched.Started(
        folder, launched.TRAIN, *options, words=("--config", str(config), *words)
    )


def steps_logged(folder) -> int:
    path = folder / "output" / "metrics.jsonl"
    return path.read_text().count('"loss": ') if path.exists() else 0


class End(NamedTuple):
    accuracy: float | None  # of a job that ended right
    steps: int
    said: str
    killed: bool  # the victim was there to be killed
    seconds: float


@pytest.fixture
def data(tmp_path, monkeypatch):
    """The tiny job's texts, with more of them to judge by; or those that were given."""
    monkeypatch.setattr(launched, "DEADLINE", LIMIT)
    if DATA:
        return Path(DATA).resolve()
    folder = tmp_path / "data"
    folder.mkdir()
    tiny_job.write_data(folder)
    tiny_job.write_table(folder / "many-dev.tsv", 800, 7)
    return folder


def run(folder, data, mode, kill=None) -> End:
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
        code = job.popen.wait(timeout=LIMIT)
        seconds = time.monotonic() - began
        assert job.is_clean(), job.left()
    finally:
        job.end()
    if code == 0:
        summary = json.loads((folder / "output" / "summary.json").read_text())
        shutil.rmtree(folder / "output")  # twenty of them are many gigabytes
        found = summary["dev"]["accuracy"]
        return End(found, summary["steps"], f"accuracy {found:.4f}", killed, seconds)
    said = re.search(r"^launch: (.*): the job ends with exit code (\d+)$", job.stderr, re.MULTILINE)
    assert said and int(said[2]) == code, job.stderr
    shutil.rmtree(folder / "output", ignore_errors=True)
    return End(None, 0, f"exit code {code}: {said[1]}", killed, seconds)


@pytest.mark.timeout(4 * 3600)
def test_every_killed_job_ends_right_or_says_why(data, tmp_path, capfd):
    undisturbed = {mode: run(tmp_path / mode, data, mode) for mode in ("async", "sync")}
    steps = {end.steps for end in undisturbed.values()}
    assert len(steps) == 1, undisturbed
    right = told = 0
    for number, kill in enumerate(plan(max(steps))):
        expected = undisturbed[kill.mode]
        end = run(tmp_path / f"job-{number}", data, kill.mode, kill)
        with capfd.disabled():
            verb = "killed" if end.killed else "had ended"
            when = f"after step {kill.step}" if kill.step else f"{kill.more:.1f} s after its start"
            print(
                f"\njob {number}, {kill.mode}, {kill.victim} {verb} {when}, restarts "
                f"{kill.restarts}: {end.said} (undisturbed {expected.said}), {end.seconds:.0f} s",
                end="",
                flush=True,
            )
        if end.accuracy is not None:
            assert end.steps == expected.steps
            assert abs(end.accuracy - expected.accuracy) <= CLOSE, end
            right += 1
        else:
            assert end.killed and not kill.restarts, (
                end
            )  # with a restart left it should have gone on
            told += 1
    with capfd.disabled():
        print(f"\n{right} ended right, {told} said why they did not, of {KILLS}; none hung")
