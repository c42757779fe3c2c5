"""Jobs of `fleetbert launch` whose processes are small scripts without Paddle."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any, Callable

import psutil
from processes import SCRIPT

DEADLINE = 300

# What each child knows: its `name` ("server.0", "trainer.1"), how often it was `restarted`, the
# folders `run` (of this start of the job) and `here` (of the test), and some verbs.
PREAMBLE = """
import os, pathlib, signal, subprocess, sys, time
environ = os.environ
run, here = pathlib.Path(environ["FLEETBERT_RUN"]), pathlib.Path(environ["TEST_FOLDER"])
restarted = int(environ["FLEETBERT_RESTARTED"])
is_server = environ["TRAINING_ROLE"] == "PSERVER"
if is_server:
    address = environ["POD_IP"] + ":" + environ["PADDLE_PORT"]
    name = f"server.{environ['PADDLE_PSERVERS_IP_PORT_LIST'].split(',').index(address)}"
else:
    name = "trainer." + environ["PADDLE_TRAINER_ID"]
starts = here / f"{name}.starts"  # a line for each start, in the whole job
with starts.open("a") as file:
    print(os.getpid(), restarted, run.name, file=file)
times = len(starts.read_text().splitlines())

def wait_for(*paths):
    until = time.monotonic() + 300
    while not all(path.exists() for path in paths):
        assert time.monotonic() < until, paths
        time.sleep(0.01)

def touch(path):
    path.touch()

def forever():
    while True:
        time.sleep(0.05)
"""

# A body that trains: launch/train.py, after noting who runs it.
TRAIN = f"""
import runpy
runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
"""


def prepare(
    folder: Path, body: str, *options: str, words: tuple[str, ...] = ()
) -> tuple[list[str], dict[str, Any]]:
    """(command, arguments of subprocess.Popen) of a job in `folder` whose processes run `body`."""
    (folder / "child.py").write_text(PREAMBLE + body)
    (folder / "tmp").mkdir(exist_ok=True)
    command = [sys.executable, "-m", "fleetbert.cli", "launch"]
    command += ["--log_dir", "log", *options, "child.py", *words]
    own = {"TEST_FOLDER": str(folder), "TMPDIR": str(folder / "tmp")}
    return command, {"cwd": folder, "env": {**os.environ, **own}}


class Started:
    """A launcher that runs, in `folder`; what it wrote is in stdout.txt and stderr.txt there."""

    def __init__(
        self,
        folder: Path,
        body: str,
        *options: str,
        words: tuple[str, ...] = (),
        environ: dict[str, str] | None = None,
    ):
        self.folder, self.mark = folder, uuid.uuid4().hex
        command, how = prepare(folder, body, *options, words=words)
        how["env"].update({"TEST_MARK": self.mark, **(environ or {})})
        with (folder / "stdout.txt").open("wb") as out, (folder / "stderr.txt").open("wb") as err:
            self.popen = subprocess.Popen(
                command,
                **how,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # no nohup here
            )

    def ended(self) -> int:
        """Wait for its end; returns the exit code."""
        return self.popen.wait(timeout=DEADLINE)

    @property
    def stdout(self) -> str:
        return (self.folder / "stdout.txt").read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr.txt").read_text(errors="replace")

    @property
    def merged(self) -> list[bytes]:
        """The lines of the merged log."""
        return (self.folder / "log" / "merged.log").read_bytes().split(b"\n")[:-1]

    def starts(self, name: str) -> list[list[str]]:
        """For each start of "trainer.1", or another: its process number, FLEETBERT_RESTARTED, and
        which start of the job it belongs to."""
        path = self.folder / f"{name}.starts"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for(self, condition: Callable[[], Any]) -> Any:
        until = time.monotonic() + DEADLINE
        while time.monotonic() < until:
            found = condition()
            if found:
                return found
            assert self.popen.poll() is None, self.stderr
            time.sleep(0.01)
        raise AssertionError(f"waited in vain:\n{self.stderr}")

    def wait_until_all_run(self, names: tuple[str, ...] = ()) -> None:
        """Until servers 0 and 1 and trainers 0 and 1, or others, have touched `<run>/<name>`."""
        wanted = names or ("server.0", "server.1", "trainer.0", "trainer.1")
        pattern = "tmp/fleetbert-*/*/"

        def all_run() -> bool:
            return all(list(self.folder.glob(pattern + name)) for name in wanted)

        self.wait_for(all_run)

    def kill(self, name: str, signum: int = signal.SIGKILL) -> int:
        """Send the newest process of that name a signal."""
        process = int(self.wait_for(lambda: self.starts(name))[-1][0])
        os.kill(process, signum)
        return process

    def left(self) -> list[psutil.Process]:
        """Living processes of this job, in whatever session, the launcher among them."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("TEST_MARK") == self.mark:
                    found.append(process)
        return found

    def is_clean(self) -> bool:
        """Whether no process is left, and no temporary folder."""
        return not self.left() and not list((self.folder / "tmp").iterdir())

    def wait_until_clean(self) -> None:
        until = time.monotonic() + DEADLINE
        while not self.is_clean():
            assert time.monotonic() < until, (self.left(), list((self.folder / "tmp").iterdir()))
            time.sleep(0.01)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()
        for process in self.left():
            with contextlib.suppress(psutil.Error):
                process.kill()
