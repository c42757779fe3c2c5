"""Logs that nobody reads, or that cannot be written, keep nobody waiting."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest
import requests
from served import DEADLINE, REAL, ask, connect, serving, settings_of

ALL_LINES = {"GLOG_v": "10", "GLOG_minloglevel": "0"}  # of native code
REQUESTS = 6000  # lines of more than a pipe and the server's own room hold


@pytest.fixture
def pipe(tmp_path):
    """A server's log, as a pipe that is read by nobody but the test."""
    path = tmp_path / "server.log"
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    yield descriptor
    os.close(descriptor)


def dropped(served) -> int:
    text = requests.get(f"{served.http}/metrics", timeout=DEADLINE).text
    return int(float(re.search(r"^fleetbert_log_lines_dropped_total (\S+)", text, re.M)[1]))


def ask_often(served) -> None:
    """A hundred requests at once, on one connection."""
    head = f"GET /v2/health/live HTTP/1.1\r\nhost: x\r\nx-request-id: {'x' * 100}\r\n\r\n"
    got = b""
    with connect(served.http) as client:
        for asked in range(100, REQUESTS + 1, 100):
            client.sendall(100 * head.encode())
            while got.count(b"HTTP/1.1 200 OK") < asked:
                part = client.recv(1 << 16)
                assert part, got[-300:]
                got += part


def read_all(descriptor: int) -> str:
    parts = []
    while True:
        try:
            parts.append(os.read(descriptor, 1 << 16))
        except BlockingIOError:
            return b"".join(parts).decode()


def test_a_log_that_nobody_reads_keeps_nobody_waiting(tmp_path, pipe):
    with serving(tmp_path, "logs.requests=true") as served:
        ask_often(served)
        count, text = dropped(served), ""
        assert count > 0

        def told():
            nonlocal text
            text += read_all(pipe)
            return "were dropped: nobody read them" in text

        served.wait_for(told)  # who reads again is told
        ask_often(served)
        assert served.end(signal.SIGINT) == 130
        first = text[: text.index("were dropped: nobody read them")].splitlines()[:-1]
    whole = [line for line in map(json.loads, first) if line.get("method") == "GET /v2/health/live"]
    assert REQUESTS - 10 <= len(whole) + count <= REQUESTS + 10


def test_a_log_that_cannot_be_written_keeps_nobody_waiting(tmp_path):
    (tmp_path / "server.log").symlink_to("/dev/full")
    with serving(tmp_path, "logs.requests=true") as served:
        assert ask(served.http, "good").status_code == 200
        served.wait_for(lambda: dropped(served))
        assert served.end() == 0


def test_a_stdout_that_nobody_reads_keeps_nobody_waiting(tmp_path):
    path = tmp_path / "server.out"
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(descriptor, b"x" * 4096)
    with serving(tmp_path, ready=False) as served:
        connections = psutil.Process(served.process.pid).connections
        served.wait_for(lambda: len(connections("tcp")) > 1)
        time.sleep(0.5)  # it is ready and says so
        assert served.end() == 0
    os.close(descriptor)


@pytest.mark.slow
def test_workers_that_say_much_keep_answering(tiny_bundle, tmp_path, pipe):
    """Native code writes to its stderr, too."""
    shutil.copytree(tiny_bundle, tmp_path / "models" / "sst" / "1")
    words = settings_of(tmp_path / "models")
    with serving(tmp_path, *words, command=REAL, environ=ALL_LINES) as served:
        for _ in range(20):
            assert ask(served.http, "word1").status_code == 200
        text = ""

        def more_than_fits():
            nonlocal text
            text += read_all(pipe)
            return len(text) > 1 << 16

        served.wait_for(more_than_fits)
        assert "InitGoogleLogging" in text
        assert served.end() == 0


def test_the_end_is_not_waited_for_when_all_writers_have_ended():
    code = (
        "import os\nfrom fleetbert.deploy.inference.ops import output\noutput.start()\n"
        "os.write(2, b'last\\n')\noutput.stop(1e6)"
    )
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, timeout=DEADLINE)
    assert done.stderr == b"last\n"
