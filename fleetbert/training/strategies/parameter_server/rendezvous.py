"""Lets the processes of a parameter-server job find and wait for each other, by files in a folder.

Paddle's own barriers need Gloo, and with Gloo saving on one trainer times out. The folder
belongs to one start of the job: FLEETBERT_RUN names it, or it lies in output_dir. Files are written
aside and renamed, so that whoever sees one sees all of it. Waiting for others has no time limit:
the launcher ends all processes when one of them fails.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import shutil
import time
from pathlib import Path
from typing import Any, Callable, TypeVar

from fleetbert import config as schema
from fleetbert.core.errors import UserError

POLL = 0.002  # seconds between looks at the folder
SLOW_POLL = 0.05  # after the first seconds of waiting
CLEARING = 10  # seconds; some shared file systems never let go of a folder


class Place:
    """This process and the others, from the launcher's environment variables."""

    def __init__(self) -> None:
        environ = os.environ
        self.is_server = environ.get("TRAINING_ROLE") == "PSERVER"
        self.servers = _listed("PADDLE_PSERVERS_IP_PORT_LIST")
        self.trainers = _listed("PADDLE_TRAINER_ENDPOINTS")
        self.endpoint = ""
        if self.is_server:
            port = environ.get("PADDLE_PORT", "")
            hosts = {environ.get("POD_IP", ""), "127.0.0.1", "localhost"}
            same_port = [s for s in self.servers if s.rpartition(":")[2] == port]
            matching = [s for s in same_port if s.rpartition(":")[0] in hosts] or same_port
            if not matching:
                raise UserError(
                    f"--servers: none of {', '.join(self.servers)} has the port {port} that this "
                    "server was given; start the job with fleetbert launch, or mend PADDLE_PORT"
                )
            self.endpoint = matching[0]
            self.rank = self.servers.index(self.endpoint)
        else:
            self.rank = int(environ.get("PADDLE_TRAINER_ID", "0"))

    @property
    def name(self) -> str:
        return f"{'server' if self.is_server else 'trainer'} {self.rank}"


def is_job() -> bool:
    """Whether this process was started as one of a parameter-server job."""
    return bool(_listed("PADDLE_PSERVERS_IP_PORT_LIST"))


def _listed(name: str) -> list[str]:
    return [word for word in os.environ.get(name, "").split(",") if word]


def run_folder(job: schema.Config, place: Place) -> Path:
    if os.environ.get("FLEETBERT_RUN"):
        return Path(os.environ["FLEETBERT_RUN"])
    # paddle.distributed.launch makes this name up anew on each machine.
    start = os.environ.get("PADDLE_GLOO_FS_PATH")
    hosts = {endpoint.rpartition(":")[0] for endpoint in (*place.servers, *place.trainers)}
    if not start or len(hosts) > 1:
        raise UserError(
            "FLEETBERT_RUN: servers and trainers on several machines need a new, empty folder that "
            "all of them see; name it in this variable, or start the job with fleetbert launch"
        )
    return Path(job.output_dir) / f".run-{hashlib.sha256(start.encode()).hexdigest()[:12]}"


T = TypeVar("T")


class Rendezvous:
    """The trainers' side. They call the same methods in the same order."""

    def __init__(self, folder: Path, rank: int, size: int):
        self.folder, self.rank, self.size = folder, rank, size
        self.count = 0  # barriers so far
        self.steps = 0  # steps begun by this trainer since the start
        self.passed = 0  # the last of those after which it went on
        self.last_step: int | None = None  # agreed on, after which all stop
        folder.mkdir(parents=True, exist_ok=True)
        # Started again alone: until it has caught up, nobody comes to its barriers.
        self.alone = (folder / f"trainer.{rank}").exists()
        put(folder / f"trainer.{rank}", os.getpid())

    def gather(self, value: T) -> list[T]:
        """Return each trainer's value, in their order, when all have called this."""
        if self.alone:
            return [value] * self.size
        self.count += 1
        put(self._file(self.count, self.rank), value)
        values = [self.wait_for(self._file(self.count, rank)) for rank in range(self.size)]
        # Whoever is here has read all of the barrier before.
        with contextlib.suppress(FileNotFoundError):
            self._file(self.count - 1, self.rank).unlink()
        return values

    def _file(self, count: int, rank: int) -> Path:
        return self.folder / f"barrier-{count:08d}.{rank}"

    def barrier(self) -> None:
        self.gather(None)

    def wait_for(self, path: Path) -> Any:
        """Wait for what another process puts there, and return it."""
        return get(path, self._answer)

    def latest(self, name: str, value: T) -> list[T]:
        """Return each trainer's latest value of that name; trainers without one are left out."""
        put(self.folder / f"{name}.{self.rank}", value)
        values: list[T] = []
        for rank in range(self.size):
            with contextlib.suppress(FileNotFoundError):
                values.append(pickle.loads((self.folder / f"{name}.{rank}").read_bytes()))
        return values

    def beat(self) -> None:
        """Write a heartbeat for the launcher, when nothing else is written for long."""
        (self.folder / f"heartbeat.{self.rank}").touch()

    def is_stopping(self, signalled: bool) -> bool:
        """Return whether a trainer has received a signal, this one if `signalled`."""
        stop = self.folder / "stop"
        if signalled:
            stop.touch()
        return stop.exists()

    def stops(self, signalled: bool) -> bool:
        """Return after a step whether it is the last one, because a trainer has received a signal.

        Trainers may be at different steps. After a signal, each writes the first step after which
        it can stop, waits for the others, and continues to the largest of these steps.
        """
        if self.is_stopping(signalled) and self.last_step is None:
            self._answer()
            ranks = range(self.size)
            self.last_step = max(self.wait_for(self.folder / f"can_stop.{rank}") for rank in ranks)
        if self.last_step is not None and self.steps >= self.last_step:
            return True
        self.passed = self.steps
        return False

    def _answer(self) -> None:
        path = self.folder / f"can_stop.{self.rank}"
        if (self.folder / "stop").exists() and not path.exists():
            put(path, max(self.steps, self.passed + 1))

    def leave(self) -> None:
        """Leave the job; the last call. The first trainer removes the folder when all have called
        this, and the others wait for that: the launcher kills the others as soon as one ends with
        an error, and a job that was asked to stop ends with one."""
        put(self.folder / f"left.{self.rank}", None)
        if self.rank == 0:
            for rank in range(self.size):
                self.wait_for(self.folder / f"left.{rank}")
            shutil.rmtree(self.folder, ignore_errors=True)
        until = time.monotonic() + CLEARING
        while self.folder.exists() and time.monotonic() < until:
            time.sleep(POLL)


def put(path: Path, value: object) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_bytes(pickle.dumps(value))
    aside.rename(path)


def get(path: Path, meanwhile: Callable[[], None] = lambda: None) -> Any:
    """Wait for what another process `put`s there, and return it; call `meanwhile` repeatedly."""
    began = time.monotonic()
    while True:
        with contextlib.suppress(FileNotFoundError):
            return pickle.loads(path.read_bytes())
        meanwhile()
        time.sleep(POLL if time.monotonic() - began < 5 else SLOW_POLL)


def check_same_job(job: schema.Config, theirs: str, place: Place) -> None:
    """Raise UserError if this process has another config than trainer 0 (JSON)."""
    here, there = map(schema.flat, (job.model_dump(mode="json"), json.loads(theirs)))
    for key, value in here.items():
        if value != there.get(key):
            raise UserError(
                f"{place.name}: was started with {key}: {schema.yaml_word(value)}, trainer 0 "
                f"with {schema.yaml_word(there.get(key))}; start all with the same config"
            )
