"""--nnodes 2 --master HOST:PORT: two launchers, each on a network of its own where root may."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import tiny_job
from namespaces import Host, two_hosts
from processes import ended, rank, wait_for, wait_for_loss

JOB = {"trainer.epochs": 3, "trainer.checkpoint_every": 7, "model.dropout": 0.0}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """Two hosts; without the right to make them, this machine."""
    with two_hosts(tmp_path_factory.mktemp("hosts")) as hosts:
        yield hosts or [Host("127.0.0.1", "lo", ())] * 2


@pytest.fixture(scope="module")
def start_both(nodes, start):
    """start_both(config) → Popen of each node's launcher, of one rank each."""

    def call(config: Path) -> list[Any]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        both = []
        for number, node in enumerate(nodes):
            launcher = ["--nnodes", "2", "--master", f"{nodes[0].address}:{port}"]
            launcher += ["--rank", str(number), "--host", node.address]
            launcher += ["--nproc_per_node", "1", "--max_restart", "3"]
            environ = {"GLOO_SOCKET_IFNAME": node.interface}
            both.append(start(config, launcher=launcher, prefix=node.prefix, environ=environ))
        return both

    return call


@pytest.mark.slow
def test_two_nodes_train_as_one_and_lose_a_rank(start_both, write, here):
    """As one process does. What follows from the loss of a node is in test_supervisor.py, and of
    folders that they do not share in train/test_checkpoint.py."""
    own = {**JOB, "trainer.max_steps": 6, "trainer.checkpoint_every": 2}
    config, output = write(own)
    both = start_both(config)
    victim = wait_for(lambda: rank(both[1], 1), both[1])
    wait_for_loss(both[0], output, 2)
    victim.kill()
    texts = [ended(process) for process in both]
    assert "restart 1 of 3" in texts[0]
    expected = tiny_job.losses(here(own))
    assert len(expected) == 6
    assert tiny_job.losses(output) == pytest.approx(expected, abs=1e-4)
