"""A server of a fake core for each module that asks for one."""

from __future__ import annotations

import shutil
import subprocess

import fake_core
import grpc
import pytest
import requests


@pytest.fixture(scope="module")
def server():
    with fake_core.serve() as found:
        yield found


@pytest.fixture
def post(server):
    """Post a message as JSON, or as requests has it, to a path of that server."""

    def call(path, message=None, **arguments):
        return requests.post(f"http://{server.http}{path}", json=message, timeout=60, **arguments)

    return call


@pytest.fixture(scope="module")
def channel(server):
    with grpc.insecure_channel(server.grpc) as found:
        yield found


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """PEM files of a certificate for localhost, signed by itself, and of its key."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    return folder / "cert.pem", folder / "key.pem"
