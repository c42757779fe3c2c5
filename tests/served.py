"""Servers in real processes, on free ports of loopback."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Iterator

import psutil
import requests

FAKE, LIGHT, SOON = (
    [sys.executable, str(Path(__file__).parent / name)]
    for name in ("serve_fake.py", "serve_light.py", "serve_soon.py")
)
REAL = [sys.executable, "-m", "fleetbert.deploy.inference"]
PORTS = ["listen.host=127.0.0.1", "listen.http_port=0", "listen.grpc_port=0"]
DEADLINE = 300  # seconds, against hanging only: a busy machine takes long to start


class Served:
    """A server's process; `urls` are those of the line that it prints when its ports are open:
    http, grpc, or https, grpcs, and the port for admins last."""

    def __init__(self, command: list[str], folder: Path, environ: dict[str, str] | None = None):
        self.log_path, self.out_path = folder / "server.log", folder / "server.out"
        with self.log_path.open("wb") as log, self.out_path.open("wb") as out:
            self.process = subprocess.Popen(
                command,
                stdout=out,
                stderr=log,
                env={**os.environ, **(environ or {})},
                preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # no nohup here
            )

    def wait_for(self, condition: Callable[[], Any], ended: bool = False) -> Any:
        """Until `condition()` is true, which is returned; fails if the process ends first."""
        until = time.monotonic() + DEADLINE
        while time.monotonic() < until:
            found = condition()
            if found:
                return found
            assert ended or self.process.poll() is None, self.log
            time.sleep(0.01)
        raise AssertionError(f"waited in vain:\n{self.log}")

    def wait_until_ready(self) -> list[str]:
        out = self.wait_for(lambda: "\nready: " in self.out and self.out)
        self.urls = [word.rstrip(",;") for word in out.split() if "://" in word]
        return self.urls

    @property
    def http(self) -> str:
        return next(url for url in self.urls if url.startswith("http"))

    @property
    def admin(self) -> str:
        return [url for url in self.urls if url.startswith("http")][-1]

    @property
    def grpc(self) -> str:
        """host:port"""
        return next(url for url in self.urls if url.startswith("grpc")).partition("://")[2]

    @property
    def out(self) -> str:
        return self.out_path.read_text(encoding="utf-8")

    @property
    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8")

    def lines(self) -> list[dict[str, Any]]:
        """The log's lines, as JSON."""
        return [json.loads(line) for line in self.log.splitlines(keepends=True) if line[-1] == "\n"]

    def workers(self) -> list[psutil.Process]:
        children = psutil.Process(self.process.pid).children()
        return [child for child in children if child.name() != "fleetbert-fork"]

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the exit code."""
        self.process.send_signal(number)
        return self.process.wait(DEADLINE)

    def kill(self) -> None:
        family = []
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        self.process.wait()
        for child in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


@contextlib.contextmanager
def serving(
    folder: Path,
    *words: str,
    command: list[str] = FAKE,
    environ: dict[str, str] | None = None,
    ready: bool = True,
) -> Iterator[Served]:
    """A server, ready unless told otherwise; its process is ended afterwards."""
    served = Served([*command, *PORTS, *words], folder, environ)
    try:
        if ready:
            served.wait_until_ready()
        yield served
    finally:
        served.kill()


def settings_of(models: Path, *more: str) -> list[str]:
    """Words for a server of these models, float32 on one worker of one thread."""
    one = ["repository.default.variant=float32", "engine.workers=1", "engine.threads=1"]
    return [f"repository.path={models}", *one, *more]


def ask(url: str, text: str, model: str = "sst", **options: Any) -> requests.Response:
    """One text in JSON."""
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}
    options.setdefault("timeout", DEADLINE)
    return requests.post(f"{url}/v2/models/{model}/infer", json={"inputs": [tensor]}, **options)


def connect(address: str) -> socket.socket:
    """A connection to host:port, with a scheme before it or none."""
    host, port = address.rpartition("://")[2].split(":")
    return socket.create_connection((host, int(port)), timeout=DEADLINE)


def read_all(client: socket.socket) -> bytes:
    """All that comes until the server ends the connection."""
    got = b""
    with contextlib.suppress(ConnectionError):
        while part := client.recv(65536):
            got += part
    return got


def exchange(client: socket.socket, context: ssl.SSLContext, sent: bytes, ends: str = "") -> bytes:
    """What is answered over TLS to what goes out with the handshake's last word, until the server
    ends the connection. ends: "tls" or "tcp", whose sending side the client ends at once."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            client.sendall(outgoing.read())
            part = client.recv(65536)
            assert part
            incoming.write(part)
    tls.write(sent)
    if ends == "tls":
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.unwrap()
    client.sendall(outgoing.read())
    if ends == "tcp":
        client.shutdown(socket.SHUT_WR)
    incoming.write(read_all(client))
    got = b""
    with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
        while piece := tls.read(65536):
            got += piece
    return got
