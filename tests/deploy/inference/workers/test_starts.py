"""Workers that cannot be started for a while, in a server that has its machine against it."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import socket
import sys
from pathlib import Path

import psutil
import pytest
import requests
from running_core import RunningCore, wait_for
from served import DEADLINE, FAKE, REAL, ask, serving

from fleetbert.deploy.inference.messages import Reason
from fleetbert.deploy.inference.workers import pool, process

MODEL = "tiny"


@pytest.fixture
def words(tiny_bundle, tmp_path):
    """Settings of a server with a model, float32 on one worker."""
    shutil.copytree(tiny_bundle, tmp_path / "models" / MODEL / "1")
    return [
        f"repository.path={tmp_path / 'models'}",
        "repository.default.variant=float32",
        "engine.workers=1",
        "engine.threads=1",
    ]


def health(served, what: str, session: requests.Session | None = None) -> int:
    asker = session or requests
    return asker.get(f"{served.http}/v2/health/{what}", timeout=DEADLINE).status_code


def connect(url: str, count: int, stack: contextlib.ExitStack) -> None:
    """Connections that nothing is sent on; those above the limit are closed."""
    host, port = url.rpartition("/")[2].split(":")
    for _ in range(count):
        with contextlib.suppress(OSError):
            stack.enter_context(socket.create_connection((host, int(port)), DEADLINE))


def test_connections_leave_descriptors_to_start_a_worker(tmp_path, words):
    limited = ["sh", "-c", 'ulimit -n 1024; exec "$@"', "sh", *REAL]
    words.append("safety.head_seconds=600")
    with serving(tmp_path, *words, command=limited) as served, contextlib.ExitStack() as stack:
        assert "1024 file descriptors (ulimit -n) allow 384 connections of each port" in served.log
        connect(served.http, 990, stack)
        connect(served.grpc, 60, stack)
        [worker] = served.workers()
        worker.kill()
        served.wait_for(lambda: "is lost (crash" in served.log)
        served.wait_for(lambda: served.workers() and served.workers() != [worker])
        assert psutil.Process(served.process.pid).num_fds() > 400
        stack.close()
        served.wait_for(lambda: health(served, "ready") == 200)
        assert ask(served.http, "word1", MODEL).status_code == 200
        assert "does not start" not in served.log


def test_the_limit_of_descriptors_is_raised_where_it_may_be(tmp_path):
    limited = ["sh", "-c", 'ulimit -S -n 300; exec "$@"', "sh", *FAKE]
    with serving(tmp_path, command=limited) as served:
        soft, _ = resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE)
        assert soft >= 2256
        assert "ulimit" not in served.log


def test_a_server_without_descriptors_heals_or_says_that_it_does_not(tmp_path, words):
    words.append("engine.heal_seconds=1")
    with serving(tmp_path, *words, command=REAL) as served, requests.Session() as session:
        assert health(served, "ready", session) == 200
        [worker] = served.workers()
        own = psutil.Process(served.process.pid)
        limits = resource.prlimit(own.pid, resource.RLIMIT_NOFILE)
        highest = max(int(one.name) for one in Path(f"/proc/{own.pid}/fd").iterdir())
        resource.prlimit(own.pid, resource.RLIMIT_NOFILE, (highest, limits[1]))
        worker.kill()
        served.wait_for(lambda: "does not start: [Errno 24] Too many open files" in served.log)
        assert health(served, "ready", session) == 503
        served.wait_for(lambda: health(served, "live", session) == 503)
        resource.prlimit(own.pid, resource.RLIMIT_NOFILE, limits)
        served.wait_for(lambda: health(served, "ready", session) == 200)
        assert health(served, "live", session) == 200
        assert ask(served.http, "word1", MODEL).status_code == 200


@pytest.fixture
def core(tiny_bundle, tmp_path):
    shutil.copytree(tiny_bundle, tmp_path / MODEL / "1")
    running = RunningCore(
        {
            "repository": {"path": str(tmp_path), "default": {"variant": "float32"}},
            "engine": {"workers": 1, "threads": 1, "heal_seconds": 0.5},
        }
    )
    try:
        running.wait_until_ready()
        yield running
    finally:
        running.close()


def test_whatever_refuses_a_worker_it_is_started_in_the_end(core, monkeypatch, caplog):
    monkeypatch.setattr(pool, "LONGEST_PAUSE", 0.1)
    numbers = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
    errors = [OSError(number, os.strerror(number)) for number in numbers]
    causes = [*errors, RuntimeError("can't start new thread")]
    start, cause = process.start, causes[0]

    def refuse(*words):
        if cause:
            raise cause
        return start(*words)

    monkeypatch.setattr(process, "start", refuse)
    psutil.Process(core.workers(MODEL)[0]).kill()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", f"{sys.executable}.gone")  # replaced under us
        # After each cause there is another try, which the next one refuses.
        for cause in [*causes, None]:
            told = f"does not start: {cause or '[Errno 2]'}"
            wait_for(lambda: caplog.text.count(told) > 1, "two tries")  # noqa: B023
            failure = core.failure(model=MODEL, texts=["word1"])
            assert failure.reason is Reason.UNAVAILABLE
            wait_for(lambda: not core.do(core.repository.live), "a server that is not live")
    wait_for(lambda: core.workers(MODEL), "a worker")
    assert core.do(core.repository.live) and core.do(core.repository.ready)
    assert core.ask(model=MODEL, texts=["word1"]).version == "1"
