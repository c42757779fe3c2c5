"""`fleetbert launch --hang_timeout`: jobs in which nobody goes on any more."""

from __future__ import annotations

import os
import re
import signal
from types import SimpleNamespace

import pytest

from fleetbert.launch.servers import Job

TWO = ("--servers", "2", "--trainers", "2")
# Long enough for all processes to have started and said so.
LIMIT = ("--hang_timeout", "8")
# In the first start they all wait for something that does not come.
HANG = """
touch(run / name)
if times == 1 or is_server:
    forever()
"""
SAID = r"no process has written a line or done a step for 8 s \(--hang_timeout\): the job hangs"


def test_a_job_that_hangs_is_ended(launch):
    """And says which process someone has stopped."""
    job = launch("print(f'last words of {name}', flush=True)\n" + HANG, *TWO, *LIMIT)
    job.wait_until_all_run()
    job.kill("trainer.1", signal.SIGSTOP)
    assert job.ended() == 124, job.stderr
    assert re.search(
        rf"launch: {SAID}; trainer 1 is stopped \(SIGSTOP\); --max_restart 0 allows no more: the "
        r"job ends with exit code 124\n",
        job.stderr,
    )
    assert job.is_clean()


@pytest.mark.endurance
def test_a_job_that_hangs_is_started_again(launch):
    """In every run one that was killed, test_launcher.py: what follows from an end is decided in
    one place."""
    job = launch(HANG, *TWO, *LIMIT, "--max_restart", "1")
    assert job.ended() == 0, job.stderr
    assert re.search(f"launch: {SAID}; starting all again, restart 1 of 1", job.stderr), job.stderr
    assert job.stderr.endswith("launch: done after restarts: 1\n")
    assert job.is_clean()


@pytest.mark.parametrize("sign", ["line", "new file", "same file", "file gone", "none"])
def test_signs_of_progress(tmp_path, sign):
    job = Job([], 1, 1, 0, 60.0, tmp_path, SimpleNamespace(heard=0, say=None))
    job.run_folder = tmp_path
    (tmp_path / "standing.0").write_text("1")
    before = job._signs()
    if sign == "line":
        job.output.heard += 1
    elif sign == "new file":
        (tmp_path / "barrier-00000001.0").touch()
    elif sign == "same file":  # even by a clock that was set back
        os.utime(tmp_path / "standing.0", (1, 1))
    elif sign == "file gone":
        (tmp_path / "standing.0").unlink()
    assert (job._signs() == before) == (sign == "none")


def test_a_folder_that_was_cleared_up_is_no_error_and_no_progress(tmp_path):
    job = Job([], 1, 1, 0, 60.0, tmp_path, SimpleNamespace(heard=0, say=None))
    job.run_folder = tmp_path / "gone"
    assert job._signs() == job._signs()
