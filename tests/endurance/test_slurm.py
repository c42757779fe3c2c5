"""`make endurance`: the file of `fleetbert launch --print slurm`, on a cluster of two nodes. One is
lost and comes back."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable

import psutil
import pytest
import tiny_job
from namespaces import two_hosts
from processes import DEADLINE, SCRIPT

TOOLS = ("munged", "sbatch", "slurmctld", "slurmd")
NAMES = ("first", "second")
JOB = {"trainer.epochs": 10, "trainer.checkpoint_every": 5, "model.dropout": 0.0}
# All below one folder. After five seconds a node counts as lost. Whoever starts again sooner than
# cred_expire after that is ended by a message that still waits to be sent to the node.
CONFIG = """\
ClusterName=test
SlurmctldHost={host}({addresses[0]})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=75
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdTimeout=5
SlurmdParameters=config_overrides
ReturnToService=2
NodeName={names[0]} NodeAddr={addresses[0]} CPUs=2
NodeName={names[1]} NodeAddr={addresses[1]} CPUs=2
PartitionName=all Nodes=ALL Default=YES
"""

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, TOOLS)),
    reason="needs root, and `apt-get install --no-install-recommends slurm-wlm munge`",
)


def wait_for(condition: Callable[[], object]) -> None:
    until = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.2)


def of_space(path: str) -> list[psutil.Process]:
    """The processes on a host."""
    done = subprocess.run(["ip", "netns", "pids", path], capture_output=True, text=True)
    return [psutil.Process(int(number)) for number in done.stdout.split()]


def test_a_job_goes_on_when_a_lost_node_is_back(tmp_path, tiny_data, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    tiny_job.write_config(tmp_path / "job.yaml", tiny_data, tmp_path / "output", JOB)
    key = tmp_path / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    (tmp_path / "state").mkdir()
    with contextlib.ExitStack() as stack:
        hosts = stack.enter_context(two_hosts(tmp_path, NAMES))
        spaces = [f"fleetbert-{os.getpid()}-{number}" for number in (0, 1)]

        def call(host: int, *words: str) -> str:
            words = (*hosts[host].prefix, *words)
            return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout

        @stack.callback
        def kill_all() -> None:
            for process in [*of_space(spaces[0]), *of_space(spaces[1])]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()

        (tmp_path / "slurm.conf").write_text(
            CONFIG.format(
                folder=tmp_path,
                host=os.uname().nodename.partition(".")[0],
                addresses=[host.address for host in hosts],
                names=NAMES,
            )
        )
        files = {"key-file": key, "socket": "munge.socket", "log-file": "munge.log"}
        files.update({"pid-file": "munge.pid", "seed-file": "munge.seed"})
        call(0, "munged", "--force", *(f"--{name}={tmp_path / at}" for name, at in files.items()))
        call(0, "slurmctld", "-c")
        for host, name in enumerate(NAMES):
            (tmp_path / name).mkdir()
            call(host, "slurmd", "-N", name)
        words = ["--print", "slurm", "--ranks", "1", str(SCRIPT), "--config", "job.yaml"]
        command = [sys.executable, "-m", "fleetbert.cli", "launch", *words]
        text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        (tmp_path / "job.sh").write_text(text)
        call(0, "sbatch", "job.sh")
        metrics = tmp_path / "output" / "metrics.jsonl"
        wait_for(lambda: metrics.exists() and metrics.read_text().count('"loss": ') > 12)

        for process in of_space(spaces[1]):
            process.kill()
        wait_for(lambda: " PD " in call(0, "squeue"))  # it waits for two nodes
        call(1, "slurmd", "-N", NAMES[1])
        wait_for(lambda: len(call(0, "squeue").splitlines()) == 1)
    assert (tmp_path / "output" / "bundle").is_dir()
    summary = json.loads((tmp_path / "output" / "summary.json").read_text())
    assert summary["resumed_at"] >= 5
    assert len(tiny_job.losses(tmp_path / "output")) == summary["steps"] == 10 * 10
