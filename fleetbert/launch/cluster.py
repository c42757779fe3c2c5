"""The addresses of a job's servers and trainers, and the environment of each process."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from fleetbert.compat import environment
from fleetbert.core import limits
from fleetbert.core.errors import UserError
from fleetbert.launch import heartbeat, reaper
from fleetbert.launch.process import Process

HOST = "127.0.0.1"

# Variables of an enclosing launcher, which are for its own ranks.
_FOREIGN = (
    "PADDLE_TRAINER_ID",
    "PADDLE_CURRENT_ENDPOINT",
    "PADDLE_LOCAL_SIZE",
    "PADDLE_MASTER",
    "PADDLE_BACKUP_ENV_PATH",
    heartbeat.VARIABLE,
)


class Cluster:
    """The addresses of one start of a job. Its ports stay reserved until `close`.

    A port is reserved by a socket that is bound with SO_REUSEADDR and does not listen: Linux gives
    the port to nobody who asks for any, but lets a process listen there that names it and sets
    SO_REUSEADDR too, as brpc's servers do (flag reuse_addr) and `socket.create_server`.
    """

    def __init__(self, servers: int, trainers: int):
        self.sockets = []
        try:
            for _ in range(servers + trainers):
                self.sockets.append(socket.socket())
                self.sockets[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                self.sockets[-1].bind((HOST, 0))
        except OSError as error:
            self.close()
            raise UserError(
                f"{servers + trainers} free ports on {HOST} were not available: {error.strerror}"
            ) from None
        self.ports = [bound.getsockname()[1] for bound in self.sockets]
        addresses = [f"{HOST}:{port}" for port in self.ports]
        self.servers, self.trainers = addresses[:servers], addresses[servers:]

    def close(self) -> None:
        for bound in self.sockets:
            bound.close()

    def port(self, process: Process) -> int:
        return self.ports[process.number + (process.role == "trainer") * len(self.servers)]

    def environ(self, process: Process, run: Path, logs: Path) -> dict[str, str]:
        """Return the environment of a server or trainer.

        Names and values are those of `python -m paddle.distributed.launch --run_mode ps
        --with_gloo 0` (launch/controllers/ps.py), but for PADDLE_BACKUP_ENV_PATH, a file
        for lists of addresses that are too long for an environment. Those that fleet reads are
        PADDLE_PSERVERS_IP_PORT_LIST, PADDLE_TRAINER_ENDPOINTS, PADDLE_TRAINERS_NUM,
        TRAINING_ROLE, POD_IP and PADDLE_PORT (a server finds its number by this address),
        PADDLE_TRAINER_ID and PADDLE_WITH_GLOO.
        """
        is_server = process.role == "server"
        environ = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
        environ.update(
            PADDLE_PSERVERS_IP_PORT_LIST=",".join(self.servers),
            PADDLE_TRAINER_ENDPOINTS=",".join(self.trainers),
            PADDLE_TRAINERS_NUM=str(len(self.trainers)),
            PADDLE_ROLE="PSERVER" if is_server else "TRAINER",
            TRAINING_ROLE="PSERVER" if is_server else "TRAINER",
            PADDLE_PORT=str(self.port(process)),
            POD_IP=HOST,
            POD_NAME=run.parent.name,
            PADDLE_LOG_DIR=str(logs),
            PADDLE_WITH_GLOO="0",
            PADDLE_GLOO_RENDEZVOUS="3",
            PADDLE_GLOO_FS_PATH=str(run / "gloo"),
            PADDLE_GLOO_HTTP_ENDPOINT=f"{HOST}:6767",
            FLEETBERT_RESTARTED=str(process.restarted),
        )
        environ[reaper.VARIABLE] = str(run)
        if not is_server:
            environ["PADDLE_TRAINER_ID"] = str(process.number)
        if not environment.started_with("OMP_NUM_THREADS", os.getpid()):
            cpus = limits.read().processors
            shared = environment.thread_settings(environ, cpus)["OMP_NUM_THREADS"]
            environ["OMP_NUM_THREADS"] = "1" if is_server else shared
        return environ
