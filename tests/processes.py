"""Training jobs in real processes: started as users do, waited for, killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "launch" / "train.py"
DEADLINE = 480


def start(
    folder: Path,
    config: Path,
    *words: str,
    launcher: list[str] | None = None,
    prefix: tuple[str, ...] = (),
    environ: dict[str, str] | None = None,
    script: Path = SCRIPT,
    program: str | None = None,
) -> Any:
    """launch/train.py, or another `script`, in `folder` as a Popen with `.folder` and `.since`;
    with options for paddle.distributed.launch (`launcher`), or a `program` that runs it, in ranks.
    End it with `kill`."""
    command = [*prefix, sys.executable]
    if launcher is not None:
        command += ["-c", program] if program else ["-m", "paddle.distributed.launch"]
        command += [*launcher, "--log_dir", str(folder / "log")]
    command += [str(script), "--config", str(config), *words]
    with (folder / "output.txt").open("wb") as output:
        process: Any = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **(environ or {})},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    process.folder = folder
    process.since = time.time()
    return process


def kill(process: Any) -> None:
    """SIGKILL to a process and to all that it started, wherever they are."""
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for child in family:  # the launcher's workers are groups of their own
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    process.wait()
    psutil.wait_procs(family, timeout=30)


def run(*words: Any, **options: Any) -> Any:
    """As `start`, until it has ended, however that is."""
    process = start(*words, **options)
    try:
        process.wait(timeout=DEADLINE)
    finally:
        kill(process)
    return process


def said(process: Any) -> str:
    """What a process and its ranks wrote."""
    files = [process.folder / "output.txt", *sorted(process.folder.glob("log/workerlog.*"))]
    return "\n".join(file.read_text(errors="replace") for file in files if file.exists())


def ended(process: Any) -> str:
    """Wait for success; returns what was written."""
    code = process.wait(timeout=DEADLINE)
    assert code == 0, said(process)
    return said(process)


def wait_for(condition: Any, process: Any) -> Any:
    """Until `condition()` is true, which is returned; fails when the process ends first."""
    until = time.monotonic() + DEADLINE
    while time.monotonic() < until:
        result = condition()
        if result:
            return result
        assert process.poll() is None, said(process)
        time.sleep(0.005)
    raise AssertionError(f"waited in vain:\n{said(process)}")


def wait_for_loss(process: Any, output: Path, step: int) -> None:
    """Until metrics.jsonl, written anew by this process, has so many losses."""

    def reached() -> bool:
        path = output / "metrics.jsonl"
        try:
            new = path.stat().st_mtime > process.since
            return new and path.read_text().count('"loss": ') >= step
        except FileNotFoundError:
            return False

    wait_for(reached, process)


def rank(process: Any, number: int) -> psutil.Process | None:
    """The process that trains as rank `number` below a launcher, if it is there."""
    try:
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                environ = child.environ()
                supervisor, _, _ = environ.get("FLEETBERT_SUPERVISOR", "").partition(",")
                if supervisor == str(child.ppid()) and environ["PADDLE_TRAINER_ID"] == str(number):
                    return child
    except psutil.NoSuchProcess:
        pass
    return None
