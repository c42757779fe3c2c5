"""Workers that cannot be started for a while, in a server that has its machine against it."""

from __future__ import annotations

import contextlib
import errno
import resource
from pathlib import Path

import light
import psutil
import pytest
import requests
from running_core import light_workers, running, wait_for
from served import DEADLINE, FAKE, LIGHT, ask, connect, serving, settings_of

from fleetbert.deploy.inference.messages import Reason
from fleetbert.deploy.inference.workers import pool, process

MODEL = "tiny"


@pytest.fixture
def models(tmp_path) -> Path:
    light.make_bundle(tmp_path / "models" / MODEL / "1")
    return tmp_path / "models"


def health(served, what: str, session: requests.Session | None = None) -> int:
    asker = session or requests
    return asker.get(f"{served.http}/v2/health/{what}", timeout=DEADLINE).status_code


def test_connections_leave_descriptors_to_start_a_worker(tmp_path, models):
    limited = ["sh", "-c", 'ulimit -n 1024; exec "$@"', "sh", *LIGHT]
    words = settings_of(models, "safety.head_seconds=600")
    with serving(tmp_path, *words, command=limited) as served, contextlib.ExitStack() as stack:
        assert "1024 file descriptors (ulimit -n) allow 384 connections of each port" in served.log
        for _ in range(990):  # those above the limit are closed
            with contextlib.suppress(OSError):
                stack.enter_context(connect(served.http))
        for _ in range(60):
            stack.enter_context(connect(served.grpc))
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


def test_a_server_without_descriptors_heals_or_says_that_it_does_not(tmp_path, models):
    words = settings_of(models, "engine.heal_seconds=1")
    with serving(tmp_path, *words, command=LIGHT) as served, requests.Session() as session:
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


def test_whatever_refuses_a_worker_it_is_started_in_the_end(models, monkeypatch, caplog):
    monkeypatch.setattr(pool, "LONGEST_PAUSE", 0.1)
    causes = [OSError(errno.EAGAIN, "Resource"), RuntimeError("can't start new thread")]
    start, cause = process.start, causes[0]

    def refuse(*words):
        if cause:
            raise cause
        return start(*words)

    with light_workers(), running(models, engine={"heal_seconds": 0.5}) as core:
        monkeypatch.setattr(process, "start", refuse)
        psutil.Process(core.workers(MODEL)[0]).kill()
        with monkeypatch.context() as patch:
            patch.setattr(process, "COMMAND", ("no-python",))  # replaced under us
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
