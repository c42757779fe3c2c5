"""What this process may use of the machine: processors by affinity and cgroup, memory by cgroup.

A container's limit is no affinity: with half a processor of 64 the kernel lets 64 threads run, and
then stops them all for most of each period. cgroup v2: cpu.max, memory.max; v1: cpu.cfs_quota_us,
memory.limit_in_bytes. A limit of any folder above holds too.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator, NamedTuple

ROOT = Path("/sys/fs/cgroup")
CGROUP = Path("/proc/self/cgroup")
NO_LIMIT = 1 << 60  # bytes; v1 says 2**63 less a page


class Limits(NamedTuple):
    """affinity: processors; quota: processors' time, None: all of it; memory: bytes, or None."""

    affinity: int
    quota: float | None
    memory: int | None

    @property
    def processors(self) -> int:
        """Threads that can run without being stopped; at least one."""
        return self.affinity if self.quota is None else min(self.affinity, max(1, int(self.quota)))

    def __str__(self) -> str:
        text = f"{self.affinity} processors by affinity"
        if self.quota is not None:
            text += f", {self.quota:g} by the cgroup's quota"
        if self.memory is not None:
            text += f", {self.memory / 2**30:.1f} GiB by the cgroup's limit of memory"
        return text


def read() -> Limits:
    """As they are now."""
    if hasattr(os, "sched_getaffinity"):
        affinity = len(os.sched_getaffinity(0))
    else:
        affinity = os.cpu_count() or 1
    quotas, memories = [], []
    for folder in _folders():
        quota, _, period = _read(folder / "cpu.max").partition(" ")  # "max 100000" without one
        if not quota:
            quota, period = (_read(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        if quota.isdigit() and period.isdigit():  # -1: none
            quotas.append(int(quota) / int(period))
        for name in ("memory.max", "memory.limit_in_bytes"):
            memory = _read(folder / name)
            if memory.isdigit() and int(memory) < NO_LIMIT:
                memories.append(int(memory))
    return Limits(affinity, min(quotas, default=None), min(memories, default=None))


def _folders() -> Iterator[Path]:
    """This process's cgroups and those above them, of both versions. Inside a container the paths
    may be the host's, and what is mounted the container's own."""
    for line in _read(CGROUP).splitlines():
        _, controllers, path = line.split(":", 2)
        for mount in [ROOT / "unified", ROOT] if not controllers else [ROOT / controllers]:
            below = mount / path.lstrip("/")
            while below != mount:
                yield below
                below = below.parent
            yield mount


def _read(path: Path) -> str:
    try:
        with path.open(encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
