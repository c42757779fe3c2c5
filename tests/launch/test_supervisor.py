"""Supervisors of ranks, without Paddle and its launcher: little scripts, and ports in use."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from processes import DEADLINE

SCRIPT = """
import os, pathlib, sys, time
from fleetbert.core import log
from fleetbert.launch import heartbeat, hub, ranks

log.start()
hub.MEET_LIMIT, hub.MEET_NOTE = 3.0, 0.5
ranks.supervised(float(sys.argv[1]), resumes=True)
rank, here = os.environ["PADDLE_TRAINER_ID"], pathlib.Path(sys.argv[2])
starts = here / f"starts.{rank}"
starts.open("a").write(f"{os.getpid()} {os.environ['PADDLE_MASTER']}\\n")
times = len(starts.read_text().splitlines())
"""
GO = """
heartbeat.note_step(times, 1)
while times == 1 and not (here / "go").exists():
    time.sleep(0.02)
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Job:
    def __init__(self, folder, body, port, hang_timeout, master=""):
        self.folder, self.processes = folder, []
        (folder / "rank.py").write_text(SCRIPT + body)
        words = [sys.executable, folder / "rank.py", str(hang_timeout), folder]
        for rank in range(2):
            own = {
                "PADDLE_TRAINER_ID": str(rank), "PADDLE_TRAINERS_NUM": "2",
                "PADDLE_TRAINER_ENDPOINTS": f"127.0.0.1:{port},127.0.0.1:1",
                "PADDLE_MASTER": master, "PADDLE_MAX_RESTART": "1",
            }  # fmt: skip
            with (folder / f"said.{rank}").open("wb") as out:
                self.processes.append(
                    subprocess.Popen(words, env={**os.environ, **own}, stdout=out, stderr=out)
                )

    def ended(self) -> list[int]:
        return [process.wait(timeout=DEADLINE) for process in self.processes]

    def said(self, rank: int) -> str:
        return (self.folder / f"said.{rank}").read_text()

    def starts(self, rank: int) -> list[list[str]]:
        path = self.folder / f"starts.{rank}"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def signal(self, rank: int, signum: int) -> None:
        """To the rank itself, when both run."""
        until = time.monotonic() + DEADLINE
        while not (self.starts(0) and self.starts(1)):
            assert time.monotonic() < until, self.said(0)
            time.sleep(0.05)
        time.sleep(2.5)  # the hub has heard of its step
        os.kill(int(self.starts(rank)[0][0]), signum)


@pytest.fixture
def start(tmp_path):
    jobs = []

    def call(body, port=None, hang_timeout=60, **more):
        jobs.append(Job(tmp_path, body, port or free_port(), hang_timeout, **more))
        return jobs[-1]

    yield call
    for job in jobs:
        for process in job.processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("signum", "why"),
    [
        (signal.SIGKILL, r"rank 1 was killed \(SIGKILL, .*\) \(at step 1\)"),
        pytest.param(
            signal.SIGSTOP,
            r"rank 1 has not moved for \d+ s \(at step 1\)",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_all_are_started_again(start, signum, why):
    job = start(GO, hang_timeout=3)
    job.signal(1, signum)
    assert job.ended() == [0, 0], job.said(0)
    assert re.search(f"{why}; starting all again, restart 1 of 1", job.said(0)), job.said(0)
    assert re.search(r"done after restarts: 1; \d of \d steps were repeats", job.said(0))
    assert [len(job.starts(rank)) for rank in (0, 1)] == [2, 2]


def test_a_failure_before_any_step_ends_the_job(start):
    job = start("sys.exit(5 * int(rank))")
    assert job.ended() == [5, 5]
    assert "rank 1 failed with exit code 5 (before its first step); the job ends" in job.said(0)


def test_a_supervisor_that_is_lost_ends_the_job(start):
    """As with its machine."""
    job = start(GO)
    job.signal(1, signal.SIGCONT)  # both run
    job.processes[1].kill()
    assert job.processes[0].wait(timeout=DEADLINE) != 0
    assert "lost the supervisor of rank 1" in job.said(0), job.said(0)


@pytest.mark.slow
def test_ranks_that_never_meet_are_started_again(start):
    """As gloo's connect on a busy machine; it costs no restart."""
    body = """
heartbeat.note_phase(heartbeat.JOINING)
if times < 3:
    time.sleep(600)
heartbeat.note_phase(heartbeat.JOINED)
"""
    job = start(body)
    assert job.ended() == [0, 0], job.said(0)
    line = "rank 0, rank 1 did not find the other ranks in 3 s; trying all again, which is no"
    assert job.said(0).count(line) == 2, job.said(0)
    assert "done after restarts" not in job.said(0)
    assert len(job.starts(1)) == 3


@pytest.mark.slow
def test_the_rank_that_is_waited_for_is_named(start):
    """However long it takes to begin."""
    body = """
time.sleep(6 * int(rank))
heartbeat.note_phase(heartbeat.JOINING)
while not (here / "joining.1").exists() and rank == "0":
    time.sleep(0.02)
(here / f"joining.{rank}").touch()
heartbeat.note_phase(heartbeat.JOINED)
"""
    job = start(body)
    assert job.ended() == [0, 0], job.said(0)
    assert job.said(0).count("waiting for rank 1 to join the other ranks") == 1, job.said(0)
    assert "again" not in job.said(0)


class Stranger:
    """Answers as a web server does, or says nothing: in turn, whatever it is told."""

    def __init__(self, *answers: bytes):
        self.answers, self.told = answers, 0
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        for answer in itertools.cycle(self.answers):
            try:
                connection, _ = self.server.accept()
            except OSError:  # closed
                return
            with connection, contextlib.suppress(OSError):
                connection.recv(1000)
                self.told += 1
                connection.sendall(answer)


@pytest.mark.parametrize(
    "answers", [(b"HTTP/1.1 400 Bad Request\r\n\r\n", b""), (b'{"exit": 7}\n', b"[1]\n")]
)
def test_a_port_that_is_taken(start, answers):
    """The hub takes another, and nobody does as the stranger says."""
    stranger = Stranger(*answers)
    job = start("", port=stranger.port)
    assert job.ended() == [0, 0], (job.said(0), job.said(1))
    assert stranger.told >= 2  # both supervisors asked
    stranger.server.close()


def test_strangers_at_the_hub_and_at_the_stores_port(start):
    """The one is sent away; the store takes another port."""
    port = free_port()
    with socket.create_server(("", 0)) as taken:
        master = f"127.0.0.1:{taken.getsockname()[1]}"
        job = start(GO, port=port, master=master)
        until = time.monotonic() + DEADLINE
        while not job.starts(0):  # the hub does not listen yet, or no more
            assert time.monotonic() < until
            with contextlib.suppress(ConnectionRefusedError):
                with socket.create_connection(("127.0.0.1", port), 5) as connection:
                    connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
                break
            time.sleep(0.01)
        (job.folder / "go").touch()
        assert job.ended() == [0, 0], job.said(0)
    used = {job.starts(rank)[0][1] for rank in (0, 1)}
    assert len(used) == 1
    assert master not in used
