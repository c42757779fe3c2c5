"""Parameter-server jobs in real processes, started by `fleetbert launch`."""

from __future__ import annotations

import contextlib
import json
import socket
from pathlib import Path
from typing import Any, Iterator

import launched
import tiny_job

STRATEGY = {"strategy.name": "parameter_server"}


def free_addresses(count: int) -> list[str]:
    """Addresses of this machine where nobody listens."""
    with contextlib.ExitStack() as stack:
        bound = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in bound:
            each.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in bound]


@contextlib.contextmanager
def starting(folder: Path, data: Path) -> Iterator[Any]:
    """start(changes, output=None) → a `launched.Started` with `.output`, its output folder; none of
    it outlives the context."""
    started: list[Any] = []

    def start(
        changes: dict[str, Any],
        output: Path | None = None,
        servers: int = 2,
        trainers: int = 2,
        restarts: int = 0,
    ) -> Any:
        own = folder / f"job-{len(started)}"
        own.mkdir()
        output = output or own / "output"
        path = tiny_job.write_config(own / "job.yaml", data, output, {**STRATEGY, **changes})
        counts = ("--servers", str(servers), "--trainers", str(trainers))
        options = (*counts, "--max_restart", str(restarts))
        job: Any = launched.Started(own, launched.TRAIN, *options, words=("--config", str(path)))
        job.output = output
        started.append(job)
        return job

    try:
        yield start
    finally:
        for job in started:
            job.end()


def said(job: launched.Started) -> str:
    """What the launcher, the servers and the trainers wrote."""
    return job.stderr + b"\n".join(job.merged).decode(errors="replace")


def ended(job: launched.Started) -> str:
    """Wait for success, with no process left; returns what was written."""
    assert job.ended() == 0, said(job)
    job.wait_until_clean()
    return said(job)


def steps_logged(job: Any) -> list[int]:
    """The steps in metrics.jsonl, whose last row may be half written."""
    path = job.output / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [row["step"] for row in map(json.loads, lines) if "loss" in row]
