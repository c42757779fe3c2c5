"""launch/train.py as users start it: one process, killed, stopped and started again."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time

import fresh
import pytest
import tiny_job
from processes import DEADLINE, SCRIPT, ended, kill, said, wait_for_loss

JOB = {"trainer.epochs": 2, "trainer.checkpoint_every": 7, "callbacks.progress": True}
TWO_THREADS = {"OMP_NUM_THREADS": "2"}  # `make test` gives all others one


@pytest.fixture(scope="module")
def one_process(start, write):
    """(output folder, Popen that has ended) of one process, of which all callbacks are on."""
    changes = {f"callbacks.{name}": True for name in ("progress", "visualdl", "report")}
    path, output = write({**JOB, **changes, "callbacks.profiler.enabled": True})
    process = start(path, environ=TWO_THREADS)
    ended(process)
    return output, process


def test_help_comes_before_paddle():
    code = (
        f"import runpy, sys; sys.argv = ['x', '--help']\n"
        f"try:\n    runpy.run_path({str(SCRIPT)!r}, run_name='__main__')\n"
        "except SystemExit: print('paddle' in sys.modules)"
    )
    done = fresh.python(code)
    assert done.stdout.endswith("False\n")
    assert "paddle.distributed.launch --nproc_per_node 2" in done.stdout
    assert "key=value" in done.stdout


@pytest.mark.slow
def test_sigterm_while_loading_ends_with_a_sentence(start, write, tmp_path):
    """The training texts come from a pipe into which nobody writes."""
    os.mkfifo(tmp_path / "train.tsv")
    path, output = write({"data.train": str(tmp_path / "train.tsv")})
    process = start(path)
    until = time.monotonic() + DEADLINE
    while True:
        try:  # fails until the run has opened the pipe to read it
            pipe = os.open(tmp_path / "train.tsv", os.O_WRONLY | os.O_NONBLOCK)
            break
        except OSError:
            assert process.poll() is None, said(process)
            assert time.monotonic() < until
            time.sleep(0.05)
    until = time.monotonic() + DEADLINE
    # CPython: a signal that comes just before read() begins does not wake it.
    while process.poll() is None:
        assert time.monotonic() < until
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
    assert process.returncode == 143
    os.close(pipe)
    assert "stopped: SIGTERM: no step is lost; the same command goes on" in said(process)
    assert "Traceback" not in said(process)
    assert not (output / "summary.json").exists()


@pytest.mark.slow
def test_leaves_everything_and_nothing_in_the_current_folder(one_process):
    output, process = one_process
    names = {path.name for path in output.iterdir()}
    assert names >= {"summary.json", "metrics.jsonl", "checkpoints", "model", "bundle"}
    assert not [name for name in names if name.startswith(".")]
    assert [path.name for path in process.folder.iterdir()] == ["output.txt"]
    assert f"done: {output}/summary.json" in said(process)
    assert "train.tsv: 160 texts" in said(process)


@pytest.mark.slow
def test_killed_and_stopped_it_loses_nothing(one_process, start, write):
    """Killed before the first checkpoint, and asked to stop: the same command goes on, and every
    loss is that of the undisturbed run, bit for bit."""
    path, output = write(JOB)
    # Nothing is saved before the end, however late the kill comes.
    late = ("trainer.checkpoint_every=20", "trainer.eval_every=20")
    process = start(path, *late, environ=TWO_THREADS)
    wait_for_loss(process, output, 4)
    kill(process)
    assert process.returncode == -signal.SIGKILL
    assert not list(output.glob("checkpoints/step-*"))

    process = start(path, environ=TWO_THREADS)
    wait_for_loss(process, output, 2)
    process.terminate()
    assert process.wait(timeout=DEADLINE) == 143
    text = said(process)
    stopped = "^stopped: SIGTERM: saved step ([0-9]+) of 20; the same command goes on from"
    found = re.search(stopped, text, re.M)
    assert found, text
    assert "Traceback" not in text
    assert (output / "checkpoints" / f"step-{int(found[1]):08d}").is_dir()

    assert f"resumed at step {found[1]}" in ended(start(path, environ=TWO_THREADS))
    assert tiny_job.losses(output) == tiny_job.losses(one_process[0])
    summaries = [json.loads((o / "summary.json").read_text()) for o in (output, one_process[0])]
    assert summaries[0]["dev"] == summaries[1]["dev"]
