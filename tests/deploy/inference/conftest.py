"""A server of a fake core for each module that asks for one."""

from __future__ import annotations

import fake_core
import grpc
import pytest


@pytest.fixture(scope="module")
def server():
    with fake_core.serve() as found:
        yield found


@pytest.fixture(scope="module")
def channel(server):
    with grpc.insecure_channel(server.grpc) as found:
        yield found
