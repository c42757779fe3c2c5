"""Two hosts on one machine: network namespaces that a cable joins, as far as root may make them."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Iterator, NamedTuple

ADDRESSES = ("10.213.77.1", "10.213.77.2")


class Host(NamedTuple):
    address: str
    interface: str
    prefix: tuple[str, ...]  # runs a command there; where the other host is `names[1]`, too


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def two_hosts(folder: Path, names: tuple[str, str] = ("first", "second")) -> Iterator[list[Host]]:
    """Hosts that know each other by `names`. [] where no namespace can be made."""
    spaces = [f"fleetbert-{os.getpid()}-{number}" for number in (0, 1)]
    hosts = folder / "hosts"
    pairs = (("127.0.0.1", "localhost"), *zip(ADDRESSES, names))
    hosts.write_text("".join(f"{address} {name}\n" for address, name in pairs))
    # `ip netns exec` would hide /sys/fs/cgroup, which Slurm wants.
    inside = f'mount --bind {hosts} /etc/hosts; exec "$@"'
    try:
        for space in spaces:
            _ip("netns", "add", space)
            _ip("-n", space, "link", "set", "lo", "up")
        cable = ["link", "add", "node0", "type", "veth", "peer", "node1", "netns", spaces[1]]
        _ip("-n", spaces[0], *cable)
        made = []
        for number, (space, address) in enumerate(zip(spaces, ADDRESSES)):
            _ip("-n", space, "addr", "add", f"{address}/24", "dev", f"node{number}")
            _ip("-n", space, "link", "set", f"node{number}", "up")
            enter = ("nsenter", f"--net=/run/netns/{space}", "unshare", "-m", "sh", "-c", inside)
            made.append(Host(address, f"node{number}", (*enter, "sh")))
    except (OSError, subprocess.CalledProcessError):
        made = []
    try:
        yield made
    finally:
        if shutil.which("ip"):
            for space in spaces:
                subprocess.run(["ip", "netns", "del", space], capture_output=True)
