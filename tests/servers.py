"""Parameter-server jobs in real processes, below Paddle's own launcher."""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from typing import Any

import processes
import psutil


def free_addresses(count: int) -> list[str]:
    """Addresses of this machine where nobody listens."""
    bound = [socket.socket() for _ in range(count)]
    try:
        for each in bound:
            each.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in bound]
    finally:
        for each in bound:
            each.close()


def start(
    folder: Path,
    config: Path,
    *words: str,
    servers: int = 2,
    trainers: int = 2,
) -> Any:
    """The job as `processes.start` starts it. End it with `kill` of this file."""
    addresses = free_addresses(servers + trainers)
    launcher = [
        *("--run_mode", "ps", "--with_gloo", "0"),
        *("--servers", ",".join(addresses[:servers])),
        *("--trainers", ",".join(addresses[servers:])),
    ]
    process = processes.start(folder, config, *words, launcher=launcher)
    process.addresses = addresses
    process.servers = servers
    return process


def said(process: Any) -> str:
    """What the launcher, the servers and the trainers wrote."""
    logs = sorted(process.folder.glob("log/serverlog.*"))
    own = [log.read_text(errors="replace") for log in logs]
    return "\n".join([processes.said(process), *own])


def ended(process: Any) -> str:
    """Wait for success, with no process left; returns what was written."""
    code = process.wait(timeout=processes.DEADLINE)
    assert code == 0, said(process)
    assert not members(process)
    return said(process)


def members(process: Any, role: str = "") -> list[psutil.Process]:
    """The processes of the job that live, or those of a role (PSERVER, TRAINER), by number."""
    found = []
    for each in psutil.process_iter():
        try:
            environ = each.environ()
            own = environ.get("PADDLE_PSERVERS_IP_PORT_LIST", "").split(",")
            if own == process.addresses[: process.servers] and each.status() != "zombie":
                place = "127.0.0.1:" + environ["PADDLE_PORT"]
                if role in environ["TRAINING_ROLE"]:
                    found.append((process.addresses.index(place), each.pid, each))
        except psutil.Error:
            continue
    return [each for _, _, each in sorted(found)]


def pause(process: Any) -> None:
    """Stop the launcher, and nothing else, until `go_on`."""
    process.send_signal(signal.SIGSTOP)


def go_on(process: Any) -> None:
    process.send_signal(signal.SIGCONT)


def lives(process: psutil.Process) -> bool:
    """Whether it runs; a dead one whose launcher is stopped is a zombie."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill(process: Any) -> None:
    for each in members(process):
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue
    processes.kill(process)
