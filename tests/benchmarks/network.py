"""Two ranks in two network namespaces, whose cable `tc` makes as slow as a network."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from namespaces import ADDRESSES, Host, two_hosts

from benchmarks.harness import Result
from fleetbert.core.errors import UserError

WORKER = Path(__file__).with_name("network_worker.py")
ENDPOINTS = [f"{address}:6170" for address in ADDRESSES]
COLUMNS = ("all-reduce", "alone", "after", "during")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gbit", type=float, nargs="+", default=[0, 10, 1], help="of the cable; 0: as it is"
    )
    parser.add_argument("--rounds", type=int, default=5)


def run(arguments: argparse.Namespace) -> Result:
    """Seconds of the all-reduce of MiniLM's gradients over gloo, and of steps with it."""
    table = [["cable", "MB", "all-reduce", "step without", "exchanged after", "while it runs"]]
    rows = []
    for gbit in arguments.gbit:
        with tempfile.TemporaryDirectory() as folder, two_hosts(Path(folder)) as hosts:
            if not hosts:
                raise UserError("network namespaces cannot be made here: run it as root")
            for host in hosts if gbit else ():
                words = ["tc", "qdisc", "add", "dev", host.interface, "root", "tbf"]
                words += ["rate", f"{gbit}gbit", "burst", "2mb", "latency", "50ms"]
                subprocess.run([*host.prefix, *words], check=True)
            row = {"gbit": gbit, "load": os.getloadavg()[0], **_measure(hosts, arguments.rounds)}
        rows.append(row)
        name = f"{gbit:g} Gbit/s" if gbit else "not limited"
        seconds = [f"{1000 * row[column]:.0f} ms" for column in COLUMNS]
        table.append([name, f"{row['bytes'] / 1e6:.1f}", *seconds])
    return Result("Two ranks on a slow cable", [table], [], {"rows": rows})


def _measure(hosts: list[Host], rounds: int) -> dict[str, float]:
    """What the first of two ranks measures."""
    ranks = []
    try:
        for number, host in enumerate(hosts):
            environ = {
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": host.interface,
                "PADDLE_TRAINER_ID": str(number),
                "PADDLE_TRAINERS_NUM": "2",
                "PADDLE_CURRENT_ENDPOINT": ENDPOINTS[number],
                "PADDLE_TRAINER_ENDPOINTS": ",".join(ENDPOINTS),
                "PADDLE_DISTRI_BACKEND": "gloo",
            }
            command = [*host.prefix, sys.executable, str(WORKER), str(rounds)]
            environ = {**os.environ, **environ}
            ranks.append(subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True))
        outputs = [rank.communicate()[0] for rank in ranks]
        if any(rank.returncode for rank in ranks):
            raise UserError("a rank failed: what it wrote is above")
        result: dict[str, float] = json.loads(outputs[0].splitlines()[-1])
        return result
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
