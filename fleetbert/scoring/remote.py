"""The files of `predict` as work for processes of a cluster: what is sent there and comes back."""

from __future__ import annotations

import contextlib
import pickle
import re
import socket
from typing import Iterable, Iterator, NamedTuple, Sequence

import fleetbert
from fleetbert.compat import versions
from fleetbert.core.errors import UserError
from fleetbert.scoring import files
from fleetbert.scoring.plan import Plan

TIMEOUT = 10.0  # seconds


class Outcome(NamedTuple):
    """What became of a file: its rows, those without an answer, and why there are none."""

    number: int  # of the file
    rows: int
    faults: int
    problem: str = ""


def pack(plans: Sequence[Plan]) -> list[bytes]:
    """The work of each file."""
    return [
        pickle.dumps((number, _versions(), pickle.dumps(plan))) for number, plan in enumerate(plans)
    ]


def answer(work: bytes) -> Outcome:
    """Answer a file, on a worker. Only what another try might mend is raised."""
    number, expected, pickled = pickle.loads(work)
    try:
        for package, version in _versions().items():
            if version != expected[package]:
                raise UserError(
                    f"{package} {version or '(none)'} is installed, and {expected[package]} where "
                    "the job was started; install the same version on each machine"
                )
        plan = pickle.loads(pickled)
        files.check_bundle(plan)
        counts = list(files.in_turn([plan]))
    except UserError as error:
        return Outcome(number, 0, 0, f"worker {socket.gethostname()}: {error}")
    return Outcome(number, sum(rows for rows, _ in counts), sum(faults for _, faults in counts))


def counted(plans: Sequence[Plan], outcomes: Iterable[Outcome]) -> Iterator[tuple[int, int]]:
    """(rows, those without an answer) of each file that this machine sees answered. UserError for
    the first that is not."""
    for outcome in outcomes:
        if outcome.problem:
            raise UserError(outcome.problem)
        plan = plans[outcome.number]
        if not plan.is_done():
            raise UserError(
                f"{plan.output} was written by a worker, and is not on this machine; name an "
                "--output that all machines share"
            )
        yield outcome.rows, outcome.faults


def connect(address: str) -> socket.socket:
    """A connection to the first place that listens, of `scheme://host:port,host:port` or without
    the scheme. UserError if none does."""
    for place in address.rpartition("://")[2].split(","):
        host, _, port = place.rpartition(":")
        if not (host and port.isdecimal()):
            raise UserError(f"--address {address}: say HOST:PORT")
        with contextlib.suppress(OSError):
            return socket.create_connection((host.strip("[]"), int(port)), TIMEOUT)
    raise UserError(f"--address {address}: nothing answers there; start the cluster, or name it")


def read(connection: socket.socket, size: int) -> bytes:
    """`size` bytes; fewer where the other side ends. OSError after TIMEOUT without any."""
    parts = b""
    while len(parts) < size and (part := connection.recv(size - len(parts))):
        parts += part
    return parts


def _versions() -> dict[str, str]:
    return {"fleetbert": fleetbert.__version__, "PaddlePaddle": versions.paddle_version()}


def cause(error: BaseException) -> str:
    """The line that names the cause, of an error that holds stacks of Python and Java; else all
    lines, as one."""
    lines = [line.strip().lstrip(": ") for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if re.match(r"[\w.]+(Error|Exception): ", line)]
    line = causes[0] if causes else " ".join(lines) or type(error).__name__
    return f"{line}; install it on each machine" if "No module named" in line else line
