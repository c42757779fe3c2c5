"""--nnodes 2 --master HOST:PORT: two launchers, each on a network of its own where root may."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import processes
import pytest
import tiny_job
from processes import ended, kill, rank, said, wait_for, wait_for_loss

JOB = {"trainer.epochs": 3, "trainer.checkpoint_every": 7}


class Node(NamedTuple):
    host: str
    interface: str
    prefix: tuple[str, ...]  # runs a command on this node's network


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def nodes():
    """Two network namespaces joined by a cable; without the right to make them, this machine."""
    names = [f"fleetbert-{os.getpid()}-{number}" for number in (0, 1)]
    hosts = ["10.213.77.1", "10.213.77.2"]
    try:
        for name in names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip(
            "-n",
            names[0],
            "link",
            "add",
            "node0",
            "type",
            "veth",
            "peer",
            "node1",
            "netns",
            names[1],
        )
        for number, (name, host) in enumerate(zip(names, hosts)):
            _ip("-n", name, "addr", "add", f"{host}/24", "dev", f"node{number}")
            _ip("-n", name, "link", "set", f"node{number}", "up")
        found = [
            Node(host, f"node{number}", ("ip", "netns", "exec", name))
            for number, (name, host) in enumerate(zip(names, hosts))
        ]
    except (OSError, subprocess.CalledProcessError):
        found = [Node("127.0.0.1", "lo", ())] * 2
    yield found
    if shutil.which("ip"):
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


@pytest.fixture(scope="module")
def start(nodes, tmp_path_factory):
    """start(config, *words for each node) → Popen of each node's launcher, of one rank each."""
    started = []

    def call(config: Path, *words: list[str]) -> list[Any]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        both = []
        for number, node in enumerate(nodes):
            launcher = ["--nnodes", "2", "--master", f"{nodes[0].host}:{port}"]
            launcher += ["--rank", str(number), "--host", node.host]
            launcher += ["--nproc_per_node", "1", "--max_restart", "3"]
            folder = tmp_path_factory.mktemp(f"node{number}")
            process = processes.start(
                folder,
                config,
                *words[number],
                launcher=launcher,
                prefix=node.prefix,
                environ={"GLOO_SOCKET_IFNAME": node.interface},
            )
            both.append(process)
            started.append(process)
        return both

    yield call
    for process in started:
        kill(process)


@pytest.fixture(scope="module")
def one_node(tiny_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("one-node")
    config = tiny_job.write_config(folder / "job.yaml", tiny_data, folder / "output", JOB)
    process = processes.start(folder, config, launcher=["--nproc_per_node", "2"])
    yield folder / "output", process
    kill(process)


def test_two_nodes_train_as_one_and_lose_a_rank(start, here, tiny_data, tmp_path):
    """As one process does. What follows from the loss of a node is in test_supervisor.py, and of
    folders that they do not share in train/test_checkpoint.py; `make endurance` has all of it."""
    own = {**JOB, "trainer.max_steps": 6, "trainer.checkpoint_every": 2, "model.dropout": 0.0}
    config = tiny_job.write_config(tmp_path / "job.yaml", tiny_data, tmp_path / "output", own)
    both = start(config, [], [])
    victim = wait_for(lambda: rank(both[1], 1), both[1])
    wait_for_loss(both[0], tmp_path / "output", 2)
    victim.kill()
    texts = [ended(process) for process in both]
    assert "restart 1 of 3" in texts[0]
    expected = tiny_job.losses(here(own))
    assert len(expected) == 6
    assert tiny_job.losses(tmp_path / "output") == pytest.approx(expected, abs=1e-4)


@pytest.mark.endurance
def test_two_nodes_train_as_one_lose_a_node_and_a_rank_and_go_on(
    start, one_node, tiny_data, tmp_path
):
    ended(one_node[1])
    output = tmp_path / "output"
    config = tiny_job.write_config(tmp_path / "job.yaml", tiny_data, output, JOB)
    both = start(config, [], [])
    wait_for_loss(both[0], output, 10)
    kill(both[1])
    assert both[0].wait(timeout=processes.DEADLINE) != 0
    assert "lost the supervisor of rank 1" in said(both[0])

    both = start(config, [], [])
    wait_for_loss(both[0], output, 18)
    wait_for(lambda: rank(both[1], 1), both[1]).kill()
    texts = [ended(process) for process in both]
    assert "restart 1 of 3" in texts[0]
    assert tiny_job.losses(output) == tiny_job.losses(one_node[0])

    both = start(config, [], [f"output_dir={tmp_path / 'elsewhere'}"])
    for process in both:
        assert process.wait(timeout=processes.DEADLINE) == 2
    problem = "see different newest checkpoints in .* (rank 0: step 30, rank 1: none)"
    assert problem.split(" in ")[0] in said(both[0])
    assert problem.split(".* ")[1] in said(both[0])
