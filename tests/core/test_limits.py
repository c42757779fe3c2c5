"""Processors and memory that a cgroup allows, read in a fake /sys/fs/cgroup."""

from __future__ import annotations

import asyncio
import os

import pytest
from fresh import python

from fleetbert.core import limits
from fleetbert.deploy.inference.repository.repository import Repository
from fleetbert.deploy.inference.settings import Engine, Serve
from fleetbert.deploy.inference.workers.process import share_processors

GIB = 1 << 30
V1 = "5:memory:{0}\n4:cpu,cpuacct:{0}\n1:name=systemd:{0}\n"
HYBRID = "4:memory:/a\n2:cpu:/a\n0::/a\n"


def make(folder, own, files):
    for name, text in files.items():
        path = folder / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    (folder / "own").write_text(own)
    return folder / "cgroup", folder / "own"


CASES = {
    "nothing": ("", {}, None, None),
    "v2, a container": ("0::/\n", {"cpu.max": "50000 100000", "memory.max": str(GIB)}, 0.5, GIB),
    "v2, no limit": ("0::/\n", {"cpu.max": "max 100000", "memory.max": "max"}, None, None),
    "v2, a unit below a slice with less": (
        "0::/user.slice/job.scope\n",
        {
            "user.slice/job.scope/cpu.max": "400000 100000",
            "user.slice/cpu.max": "250000 100000",
            "user.slice/job.scope/memory.max": str(GIB),
            "user.slice/memory.max": "max",
        },
        2.5,
        GIB,
    ),
    "v1, a container that sees the host's path": (
        V1.format("/docker/abc"),
        {
            "cpu,cpuacct/cpu.cfs_quota_us": "150000",
            "cpu,cpuacct/cpu.cfs_period_us": "100000",
            "memory/memory.limit_in_bytes": str(2 * GIB),
        },
        1.5,
        2 * GIB,
    ),
    "v1, no limit": (
        V1.format("/"),
        {
            "cpu,cpuacct/cpu.cfs_quota_us": "-1",
            "cpu,cpuacct/cpu.cfs_period_us": "100000",
            "memory/memory.limit_in_bytes": "9223372036854771712",
        },
        None,
        None,
    ),
    "hybrid": (
        HYBRID,
        {
            "cpu/a/cpu.cfs_quota_us": "300000",
            "cpu/a/cpu.cfs_period_us": "100000",
            "unified/a/memory.max": str(GIB),
        },
        3.0,
        GIB,
    ),
    "what is no number": ("0::/\n", {"cpu.max": "x y", "memory.max": ""}, None, None),
}


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """fake(processors, own, files) is what this process sees."""

    def call(processors, own, files):
        root, path = make(tmp_path, own, files)
        monkeypatch.setattr(limits, "ROOT", root)
        monkeypatch.setattr(limits, "CGROUP", path)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)))

    return call


@pytest.mark.parametrize("case", CASES)
def test_limits_of_cgroups(fake, case):
    own, files, quota, memory = CASES[case]
    fake(64, own, files)
    assert limits.read() == (64, quota, memory)


@pytest.mark.parametrize(
    ("quota", "gib", "settings", "expected"),
    [
        ("50000", 64, {}, ([()], 1)),  # not pinned: other containers would be, to the same ones
        ("250000", 64, {}, ([()] * 2, 1)),
        ("1600000", 64, {}, ([()] * 8, 2)),
        ("max", 4, {}, ([tuple(range(16 * n, 16 * n + 16)) for n in range(4)], 16)),
        ("max", 1, {}, ([tuple(range(64))], 64)),
        ("max", 1, {"workers": 3, "threads": 1}, ([(0,), (1,), (2,)], 1)),
    ],
)
def test_workers_and_threads_follow_them(fake, quota, gib, settings, expected):
    fake(64, "0::/\n", {"cpu.max": f"{quota} 100000", "memory.max": str(gib * GIB)})
    shares, threads = share_processors(Engine(**settings))
    assert (list(shares), threads) == expected


def test_training_takes_no_more_threads(tmp_path):
    root, own = make(tmp_path, "0::/\n", {"cpu.max": "350000 100000"})
    done = python(
        "import os; from pathlib import Path; from fleetbert.core import limits\n"
        f"limits.ROOT, limits.OWN = Path({str(root)!r}), Path({str(own)!r})\n"
        "os.sched_getaffinity = lambda _: set(range(8))\n"
        "import fleetbert.compat.prepared; print(os.environ['OMP_NUM_THREADS'])",
        OMP_NUM_THREADS=None,
    )
    assert done.stdout == "3\n", done.stderr


def test_the_server_says_so_first(fake, tmp_path, caplog):
    fake(8, "0::/\n", {"cpu.max": "250000 100000", "memory.max": str(GIB)})
    caplog.set_level("INFO")

    async def start():
        repository = Repository(Serve.model_validate({"repository": {"path": str(tmp_path)}}))
        repository.start()
        await repository.close(0)

    asyncio.run(start())
    assert caplog.messages[0] == (
        "8 processors by affinity, 2.5 by the cgroup's quota, 1.0 GiB by the cgroup's limit of "
        "memory; each version has 1 workers of 2 threads"
    )
