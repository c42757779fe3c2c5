"""A parameter server, and the check of jobs that need one."""

from __future__ import annotations

import os
import signal
import socket

from fleetbert import config as schema
from fleetbert.compat import environment
from fleetbert.compat.parameter_server import Fleet
from fleetbert.core.errors import UserError
from fleetbert.training.strategies.parameter_server import rendezvous


def is_server() -> bool:
    return os.environ.get("TRAINING_ROLE") == "PSERVER"


def check(job: schema.Config) -> None:
    """Raise UserError if a job cannot run on servers, or was started without them."""
    if not rendezvous.is_job():
        raise UserError(
            "strategy.name: parameter_server needs servers and trainers; start the job with "
            "`fleetbert launch --servers 2 --trainers 2 ...`, or with "
            "`python -m paddle.distributed.launch --run_mode ps --servers ... --trainers ... "
            "--with_gloo 0 ...`"
        )
    if type(job) is not schema.Config:
        raise UserError("strategy.name: parameter_server is for training only; choose auto")
    if job.precision.level not in ("O0", "auto"):
        raise UserError(
            f"precision.level: {job.precision.level} does not go together with parameter_server, "
            "which computes in float32; choose O0"
        )
    if job.trainer.device not in ("auto", "cpu"):
        raise UserError(
            f"trainer.device: parameter_server runs on CPUs only, not on {job.trainer.device}"
        )


def serve(job: schema.Config) -> None:
    """Run a server until trainer 0 stops it."""
    check(job)
    place = rendezvous.Place()
    environment.die_with_parent(os.getppid())
    check_port(place.endpoint)
    folder = rendezvous.run_folder(job, place)
    folder.mkdir(parents=True, exist_ok=True)
    first = rendezvous.get(folder / "tables")  # from trainer 0
    rendezvous.check_same_job(job, first["job"], place)

    tables = Fleet(*first["shape"])
    # Asked to stop, the trainers save, for which they need the servers, and then stop these.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Paddle's C++ does not come back to Python
    tables.serve()


def check_port(endpoint: str) -> None:
    """Raise UserError if this machine cannot listen there, where Paddle's C++ would abort."""
    host, _, port = endpoint.rpartition(":")
    try:
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((host, int(port)))
    except OSError as error:
        raise UserError(
            f"--servers: server {endpoint} cannot listen there: {error.strerror}; choose a free "
            "port of this machine"
        ) from error
