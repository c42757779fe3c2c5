"""What the servers tell of themselves, with answers as brpc's in place of theirs.

The true answers are in test_parameter_server.py.
"""

from __future__ import annotations

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fleetbert.training.strategies.parameter_server import figures
from fleetbert.training.strategies.parameter_server.figures import Servers

ANSWER = """\
cost_profiler_pserver_server_pull_dense_count : {dense}
cost_profiler_pserver_server_pull_sparse_count : {sparse}
cost_profiler_pserver_server_push_dense_count : {dense}
cost_profiler_pserver_server_push_sparse_count : {dense}
process_memory_resident : {memory}
rpc_server_33999_paddle_distributed_ps_service_service_latency : 803
rpc_server_33999_paddle_distributed_ps_service_service_latency_80 : 1019
rpc_server_33999_paddle_distributed_ps_service_service_latency_99 : {slowest}
gcc_version : "8.2.0"
"""


class Fake:
    """A server at `endpoint` that answers `text`, with `status`."""

    def __init__(self):
        fake = self
        self.status, self.asked = 200, []
        self.set(0, 0)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                fake.asked.append(self.path)
                data = fake.text.encode()
                self.send_response(fake.status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def set(self, dense, sparse, memory=100_000_000, slowest=12714):
        self.text = ANSWER.format(dense=dense, sparse=sparse, memory=memory, slowest=slowest)

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def fakes():
    with contextlib.ExitStack() as stack:
        made = [Fake(), Fake()]
        for fake in made:
            stack.callback(fake.close)
        yield made


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still; `clock[0]` is its time."""
    now = [1000.0]
    monkeypatch.setattr(figures.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(figures, "LIMIT", 60.0)
    return now


@pytest.fixture
def servers(fakes, clock):
    return Servers([fake.endpoint for fake in fakes])


def test_speeds_are_of_the_time_since_the_row_before(fakes, clock, servers):
    fakes[0].set(dense=30, sparse=50)
    fakes[1].set(dense=10, sparse=20, memory=300_000_000, slowest=500)
    clock[0] += 10
    row = servers.row(lambda: 156)
    assert row == {
        "servers.rows": 156, "servers.memory_mb": 300.0, "servers.pulls_per_s": 11.0,
        "servers.pushes_per_s": 8.0, "servers.latency_ms": 0.803, "servers.latency_99_ms": 12.714,
        "server.0.memory_mb": 100.0, "server.0.pulls_per_s": 8.0, "server.0.pushes_per_s": 6.0,
        "server.0.latency_ms": 0.803, "server.0.latency_99_ms": 12.714,
        "server.1.memory_mb": 300.0, "server.1.pulls_per_s": 3.0, "server.1.pushes_per_s": 2.0,
        "server.1.latency_ms": 0.803, "server.1.latency_99_ms": 0.5,
    }  # fmt: skip
    fakes[0].set(dense=30, sparse=60)
    clock[0] += 2
    assert servers.row(lambda: 156)["servers.pulls_per_s"] == 5.0
    whole = servers.since_start()
    assert whole[0]["pulls_per_s"] == 90 / 12
    assert whole[1]["pushes_per_s"] == 20 / 12


def test_they_are_asked_once_a_second_at_most(fakes, clock, servers):
    clock[0] += 0.5
    assert servers.row(lambda: 156)
    asked = len(fakes[0].asked)
    clock[0] += 0.5
    assert servers.row(lambda: 156) == {}
    assert len(fakes[0].asked) == asked
    clock[0] += 0.6
    assert servers.row(lambda: 156)


def test_only_what_is_wanted_is_asked_for(fakes, servers):
    assert fakes[0].asked == [f"/vars/{figures.VARIABLES}"]
    assert not set(figures.VARIABLES) & set(" ?#&")


@pytest.mark.parametrize("trouble", ["gone", "error"])
def test_without_an_answer_a_row_has_none_of_them(fakes, clock, servers, trouble):
    clock[0] += 10
    if trouble == "error":
        fakes[1].status = 500
    else:
        servers.connections[1].close()
        servers.connections[1].port = 1
    assert servers.row(lambda: 156) == {}
    assert servers.since_start() == []
    # Back again, it has its figures, but nothing to tell its speed from.
    fakes[1].status, servers.connections[1].port = 200, fakes[1].server.server_port
    clock[0] += 10
    row = servers.row(lambda: 156)
    assert row["server.1.memory_mb"] == 100.0
    assert "server.1.pulls_per_s" not in row
    clock[0] += 10
    assert servers.row(lambda: 156)["server.1.pulls_per_s"] == 0


def test_what_is_not_known_is_left_out(fakes, clock, servers):
    """Rows, a latency that is not known yet, and all that a server does not count."""
    fakes[0].set(dense=30, sparse=50, slowest=0)
    clock[0] += 10
    row = servers.row(lambda: None)
    assert "servers.rows" not in row and "server.0.latency_99_ms" not in row
    assert row["servers.latency_99_ms"] == row["server.1.latency_99_ms"] == 12.714
    for fake in fakes:
        fake.text = "process_memory_resident : 5000000\n"
    clock[0] += 10
    assert servers.row(lambda: 156) == {
        "servers.rows": 156, "servers.memory_mb": 5.0, "server.0.memory_mb": 5.0,
        "server.1.memory_mb": 5.0,
    }  # fmt: skip


def test_each_server_is_asked_how_many_pushes_it_has_handled(fakes, servers):
    for fake, count in zip(fakes, (30, 10)):
        fake.text = f"{figures.HANDLED} : {count}\r\n"
        fake.asked.clear()
    assert servers.handled().tolist() == [30, 10]
    assert fakes[1].asked == [f"/vars/{figures.HANDLED}"]
    # Without a number, or an answer, it is not known; then again.
    known = fakes[1].text
    for text in ("", "no such variable", f"{figures.HANDLED} : many"):
        fakes[1].text = text
        assert servers.handled() is None
    fakes[1].text = known
    assert servers.handled().tolist() == [30, 10]
    away = servers.connections[1]
    away.close()
    port, away.port = away.port, 1
    assert servers.handled() is None
    away.port = port
    assert servers.handled().tolist() == [30, 10]
