"""One writer at a time, in real processes: who comes second is told who is first."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fleetbert.core import files, locks
from fleetbert.core.errors import UserError

DEADLINE = 60

HOLD = """
import os, sys, time
from pathlib import Path
from fleetbert.core import locks
with locks.only_writer(Path(sys.argv[1]), "the folder", "go away"):
    {inside}
    print("has it", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def hold(tmp_path):
    """hold(inside) → a process that has the lock and has run `inside`."""

    def call(inside: str = "pass") -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD.format(inside=inside), str(tmp_path / "lock")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        assert process.stdout.readline() == b"has it\n"
        return process

    started: list[subprocess.Popen] = []
    yield call
    for process in started:
        process.kill()
        process.communicate()


def test_the_second_is_told_who_the_first_is(hold, tmp_path):
    first = hold()
    for take in (locks.check_free, lambda *words: locks.only_writer(*words).__enter__()):
        with pytest.raises(UserError) as caught:
            take(tmp_path / "lock", "the folder", "go away")
        assert re.fullmatch(
            f"the folder: process {first.pid} \\(`.*python.* -c .*`\\) is writing it; go away",
            str(caught.value),
        )


def test_of_a_process_that_ended_nothing_is_left(hold, tmp_path):
    hold().communicate(timeout=DEADLINE)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "inside",
    [
        "pass",
        # A child that lives on, started anew or forked, does not keep it.
        "__import__('subprocess').Popen(['sleep', '20'], stdout=2)",
        "r, w = os.pipe(); "
        "os.fork() or (os.write(w, b'x'), os.close(1), time.sleep(20), os._exit(0)); "
        "os.read(r, 1)",
    ],
)
def test_a_dead_process_blocks_nobody(hold, tmp_path, inside):
    process = hold(inside)
    process.kill()
    process.wait()
    assert (tmp_path / "lock").exists()
    with locks.only_writer(tmp_path / "lock", "the folder", "go away"):
        assert str(os.getpid()) in (tmp_path / "lock").read_text()
    assert not (tmp_path / "lock").exists()


def test_who_waits_says_for_whom_and_then_has_it(hold, tmp_path, caplog):
    first = hold()
    caplog.set_level("INFO")
    code = HOLD.replace('"go away"', '"", wait=True').format(inside="pass")
    code = "import logging; logging.basicConfig(level=20)\n" + code
    second = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "lock")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert f"the folder: waits for process {first.pid} " in second.stderr.readline().decode()
    first.communicate(timeout=DEADLINE)
    assert second.stdout.readline() == b"has it\n"
    with pytest.raises(UserError, match=f"process {second.pid} "):
        locks.check_free(tmp_path / "lock", "the folder", "go away")
    second.communicate(timeout=DEADLINE)
    assert second.returncode == 0


def test_a_thread_may_take_it_again(tmp_path: Path):
    with locks.only_writer(tmp_path / "lock", "the folder", ""):
        with locks.only_writer(tmp_path / "lock", "the folder", ""):
            pass
        assert (tmp_path / "lock").exists()
        locks.check_free(tmp_path / "lock", "the folder", "")


def test_a_job_has_its_folder_alone(tmp_path):
    with locks.only_job(tmp_path / "run"), ThreadPoolExecutor(1) as pool:
        other = pool.submit(lambda: locks.only_job(tmp_path / "run").__enter__())
        with pytest.raises(UserError, match=r"output_dir: .*run: process .* another output_dir$"):
            other.result()


def test_jobs_that_begin_together_do_not_disturb_each_other(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: files.make_output_dir(tmp_path / "run"), range(2000)))
    assert not list((tmp_path / "run").iterdir())
