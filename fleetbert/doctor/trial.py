"""Looks at the machine, then starts what tries it: `smoke`, a job of two ranks, a server."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Iterator

from fleetbert.client import Client
from fleetbert.core.errors import UserError
from fleetbert.doctor import machine, smoke
from fleetbert.doctor.findings import Finding, broken, not_here, ok
from fleetbert.launch.cluster import Cluster

DEADLINE = 300  # seconds that a part may take on a slow machine


def examine(trying: bool = True) -> Iterator[Finding]:
    yield from machine.look()
    if not trying:
        return
    try:
        folder = Path(tempfile.mkdtemp(prefix="fleetbert-doctor-"))
    except OSError as error:
        raise UserError(f"doctor: no temporary folder: {error}; set TMPDIR") from error
    try:
        yield from tried(folder)
        if (folder / "run" / "bundle").exists():
            yield two_ranks(folder)
            yield served(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def environment() -> dict[str, str]:
    """Of the processes that are started: of no cluster, and of this very fleetbert."""
    root = str(Path(__file__).parents[2])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PADDLE_")}
    paths = [root, *filter(None, [kept.get("PYTHONPATH")])]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths)}


def tried(folder: Path) -> Iterator[Finding]:
    """What `smoke` finds, as it finds it."""
    with (folder / "smoke.txt").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "fleetbert.doctor.smoke", str(folder)],
            stdout=subprocess.PIPE, stderr=output, cwd=folder, env=environment(),
        )  # fmt: skip
    assert process.stdout is not None
    last = "before its first step"
    for line in process.stdout:
        if line.startswith(b'{"check"'):
            finding = Finding(**json.loads(line))
            last = f"after: {finding.check}"
            yield finding
    if code := process.wait():
        what = (
            f"the process ended with exit code {code}, {last}: {_last_line(folder / 'smoke.txt')}"
        )
        yield broken("try", what, smoke.REPORT)


def two_ranks(folder: Path) -> Finding:
    """A job of two processes through Paddle's launcher, as users start it."""
    check = "train two ranks"
    script = folder / "train.py"
    script.write_text(
        "from fleetbert.core import errors\nfrom fleetbert.cli import train\n"
        'if __name__ == "__main__":\n    errors.run(train.main)\n'
    )
    config = smoke.write_job(folder, "ranks")
    command = [
        sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", "2",
        "--log_dir", str(folder / "log"), str(script), "--config", str(config),
    ]  # fmt: skip
    began = time.perf_counter()
    with _started(command, folder / "ranks.txt") as process:
        code: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(DEADLINE)
    summary = folder / "ranks" / "summary.json"
    if code or not summary.exists():
        log = folder / "log" / "workerlog.0"
        said_last = _last_line(log if log.exists() else folder / "ranks.txt")
        ended = f"no end within {DEADLINE} s" if code is None else f"exit code {code}"
        return broken(check, f"{ended}: {said_last}", smoke.REPORT)
    result = json.loads(summary.read_text(encoding="utf-8"))
    accuracy, ranks = result["dev"]["accuracy"], result["world_size"]
    said_so = f"{ranks} ranks, accuracy {accuracy:.3f} ({time.perf_counter() - began:.0f} s)"
    if ranks != 2 or accuracy < smoke.LEAST_ACCURACY:
        return broken(check, said_so, smoke.REPORT)
    return ok(check, said_so)


def served(folder: Path) -> Finding:
    """A server of the bundle, asked over HTTP, ended by SIGTERM."""
    check = "serve"
    repository = folder / "models"
    shutil.copytree(folder / "run" / "bundle", repository / "tiny" / "1")
    ports = Cluster(0, 2)
    ports.close()
    http, grpc = ports.ports
    command = [
        sys.executable, "-m", "fleetbert.cli", "serve", "--repository", str(repository),
        "--http-port", str(http), "--grpc-port", str(grpc),
    ]  # fmt: skip
    output = folder / "serve.txt"
    began = time.perf_counter()
    try:
        with _started(command, output) as process, Client(f"http://127.0.0.1:{http}") as client:
            while not client.ready():
                if process.poll() is not None:
                    text = output.read_text(errors="replace")
                    if "No module named" in text:
                        return not_here(check, _last_line(output), "pip install 'fleetbert[serve]'")
                    return broken(check, f"it ended: {_last_line(output)}", smoke.REPORT)
                if time.perf_counter() - began > DEADLINE:
                    return broken(check, f"not ready after {DEADLINE} s", smoke.REPORT)
                time.sleep(0.2)
            answers = client.infer("tiny", ["word1 word2 word3", "word60 word61 word62"])
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
    except Exception as error:  # whatever it is, it is to be told
        return broken(check, f"{type(error).__name__}: {error}", smoke.REPORT)
    labels = [answer.label for answer in answers]
    took = time.perf_counter() - began
    if labels != ["bad", "good"] or code:
        return broken(check, f"answered {labels}, exit code {code}", smoke.REPORT)
    return ok(check, f"answered 2 texts over HTTP, left with exit code 0 ({took:.0f} s)")


@contextlib.contextmanager
def _started(command: list[str], output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """In a session of its own, of which all processes end with the block."""
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, cwd=output.parent, env=environment(),
            start_new_session=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else "it said nothing"
