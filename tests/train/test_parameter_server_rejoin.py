"""A trainer is killed, started again alone by `fleetbert launch`, and goes on with the others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import processes
import psutil
import pytest
import tiny_job
from processes import SCRIPT, wait_for_loss

from fleetbert.errors import NotConnected
from fleetbert.train.strategies.parameter_server.rendezvous import Rendezvous, put
from fleetbert.train.strategies.parameter_server.trainer import Standing, find_standing


@pytest.fixture
def launch():
    """launch(config) → `fleetbert launch` with a server, two trainers and one restart."""
    started = []

    def call(config: Path) -> subprocess.Popen:
        folder = config.parent
        options = ["--servers", "1", "--trainers", "2", "--max_restart", "1"]
        command = [sys.executable, "-m", "fleetbert.cli", "launch", *options]
        with (folder / "output.txt").open("wb") as output:
            process = subprocess.Popen(
                [*command, "--log_dir", str(folder / "logs"), str(SCRIPT), "--config", config],
                cwd=folder,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        process.folder, process.since = folder, config.stat().st_mtime
        started.append(process)
        return process

    yield call
    for process in started:
        processes.kill(process)


def trainer(process: subprocess.Popen, rank: int) -> psutil.Process:
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if child.environ().get("PADDLE_TRAINER_ID") == str(rank):
                return child
        except psutil.Error:
            continue
    raise AssertionError(f"no trainer {rank}")


ATTEMPTS = 5


@pytest.mark.parametrize(
    ("mode", "rank"), [pytest.param("async", 0, marks=pytest.mark.endurance), ("sync", 1)]
)
def test_a_killed_trainer_goes_on_with_the_others(launch, tiny_data, tmp_path, mode, rank):
    changes = {
        "strategy.name": "parameter_server", "strategy.mode": mode, "trainer.epochs": 4,
        "trainer.eval_every": 100, "trainer.log_every": 4, "trainer.checkpoint_every": 100,
    }  # fmt: skip
    for attempt in range(ATTEMPTS):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        output = folder / "output"
        process = launch(tiny_job.write_config(folder / "job.yaml", tiny_data, output, changes))
        wait_for_loss(process, output, 4)
        trainer(process, rank).kill()
        said = folder / "logs" / "merged.log"
        assert process.wait(timeout=processes.DEADLINE) == 0, said.read_text(errors="replace")
        losses = tiny_job.losses(output)
        assert list(losses) == [1, *range(4, 41, 4)]
        summary = json.loads((output / "summary.json").read_text())
        assert summary["steps"] == 40
        assert summary["dev"]["accuracy"] > 0.9
        launcher = (folder / "output.txt").read_text(errors="replace")
        assert f"launch: trainer {rank} was killed" in launcher
        assert launcher.endswith("launch: done after restarts: 1\n")
        text = said.read_text(errors="replace")
        if f"rank {rank}: goes on at step" in text:
            return
        # The others were waiting for it just then: all began again.
        assert "was killed while the others waited for it" in text
    pytest.fail(f"in none of {ATTEMPTS} attempts it went on alone")


class TestFind:
    """Where the killed one stood, from the files that it left."""

    @pytest.fixture
    def rendezvous(self, tmp_path):
        return Rendezvous(tmp_path, 1, 2)

    @pytest.mark.parametrize(("last", "joins"), [(4, True), (5, True), (6, False)])
    def test_only_the_next_barrier_can_be_joined(self, rendezvous, last, joins):
        standing = Standing({"step": 7}, {}, 4, 7, [7, 7], [8, 7])
        put(rendezvous.folder / "standing.1", standing)
        put(rendezvous.folder / f"barrier-{last:08d}.1", None)
        put(rendezvous.folder / "barrier-00000009.0", None)  # another's
        if joins:
            assert find_standing(rendezvous) == standing
        else:
            with pytest.raises(NotConnected, match="trainer 1: was killed while the others"):
                find_standing(rendezvous)

    def test_one_that_never_took_a_step_cannot(self, rendezvous):
        assert not rendezvous.alone
        again = Rendezvous(rendezvous.folder, 1, 2)
        assert again.alone
        with pytest.raises(NotConnected, match="the whole job has to start again"):
            find_standing(again)
