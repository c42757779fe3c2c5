"""The files of `predict` as work that is sent to another process, without a cluster."""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Iterator, Mapping

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fleetbert
from fleetbert.scoring import files, on_ray, on_spark, places, remote


def here(plans):
    """A runner: the last file first, as clusters have no order."""
    yield from remote.counted(plans, map(remote.answer, reversed(remote.pack(plans))))


@pytest.fixture
def score(copied_bundle, tmp_path):
    """score(runner) of two files, of which one has a row without a text."""
    (tmp_path / "in" / "n=1").mkdir(parents=True)
    for number, name in enumerate(("a", "n=1/b")):
        table = pa.table({"id": [2 * number, 2 * number + 1], "text": ["word1", " " * number]})
        pq.write_table(table.slice(0, 1 + number), tmp_path / "in" / f"{name}.parquet")
    folders = [places.place(str(tmp_path / name)) for name in ("in", "out")]
    scorer = fleetbert.Scorer(copied_bundle)
    return lambda runner=here: files.score(scorer, *folders, keep=["id"], runner=runner)


def test_the_output_is_that_of_one_process(score, tmp_path):
    assert score() == files.Counts(rows=3, faults=1, files=2, earlier=0)
    assert score(runner=None) == files.Counts(rows=0, faults=0, files=0, earlier=2)
    assert sorted(pq.read_table(tmp_path / "out")["id"].to_pylist()) == [0, 2]
    names = {path.name for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert names == {"a.parquet", "b.parquet", "b.jsonl"}


def test_no_row_that_a_worker_could_answer_is_an_error(score, tmp_path):
    for path in (tmp_path / "in").rglob("*.parquet"):
        pq.write_table(pa.table({"id": [1], "text": [" "]}), path)
    with pytest.raises(fleetbert.UserError, match="none of its rows could be answered"):
        score()


def test_what_killed_workers_have_left_is_removed(score, tmp_path):
    left = tmp_path / "out" / ".0123.a.parquet.part"
    others = tmp_path / "out" / ".0123.another.parquet.part"  # another shard's
    left.parent.mkdir()
    left.touch(), others.touch()
    score()
    assert not left.exists() and others.exists()


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        ("none", r"worker .*: .*bundle is not a bundle: it has no manifest\.json"),
        ("another", r"worker .*: .*bundle is another bundle than where the job was started"),
        ("paddle", r"worker .*: PaddlePaddle 9\.9 is installed, and .* where the job was started"),
        (
            "output",
            r"a\.parquet was written by a worker, and is not on this machine; name an",
        ),
    ],
)
def test_a_worker_that_differs_is_named(
    score, copied_bundle, tmp_path, monkeypatch, broken, sentence
):
    def runner(plans):
        work = remote.pack(plans)
        if broken == "none":
            shutil.rmtree(copied_bundle)
        elif broken == "another":
            manifest = copied_bundle / "manifest.json"
            manifest.write_text(manifest.read_text() + "\n")
        elif broken == "paddle":
            monkeypatch.setattr(remote.versions, "paddle_version", lambda: "9.9")
        outcomes = [remote.answer(part) for part in work]
        if broken == "output":
            shutil.rmtree(tmp_path / "out")
        yield from remote.counted(plans, outcomes)

    with pytest.raises(fleetbert.UserError, match=sentence):
        score(runner)
    assert not [path for path in tmp_path.glob("out/**/*") if path.is_file()]


@pytest.mark.parametrize(
    "address", ["spark://127.0.0.1:1", "ray://[::1]:1,127.0.0.1:1", "127.0.0.1:1"]
)
def test_an_address_where_nothing_listens(address):
    with pytest.raises(fleetbert.UserError, match="nothing answers there; start the cluster"):
        remote.connect(address)
    with pytest.raises(fleetbert.UserError, match="say HOST:PORT"):
        remote.connect("spark://host")
    with pytest.raises(fleetbert.UserError, match="--address host:7077: this is no master of Spa"):
        next(on_spark.run([], "host:7077"))


@contextlib.contextmanager
def grpc_server(statuses: Mapping[str, str]) -> Iterator[int]:
    """The port of a server that has these methods, each with its status."""
    grpc = pytest.importorskip("grpc")

    def end(request, context):
        if statuses[name] != "OK":
            context.abort(grpc.StatusCode[statuses[name]], "")
        return b""

    server = grpc.server(ThreadPoolExecutor(1))
    for name in statuses:
        _, service, method = name.split("/")
        methods = {method: grpc.unary_unary_rpc_method_handler(end)}
        handler = grpc.method_handlers_generic_handler(service, methods)
        server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None)


@pytest.mark.parametrize("address", ["127.0.0.1", "ray://127.0.0.1", "spark://127.0.0.1"])
@pytest.mark.parametrize("other", ["silent", "http", "ends", "grpc"])
def test_an_address_where_something_else_listens(other, address, monkeypatch):
    monkeypatch.setattr(remote, "TIMEOUT", 0.2)
    engine = on_spark if address.startswith("spark") else on_ray
    with contextlib.ExitStack() as stack:
        if other == "http":
            server = stack.enter_context(HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler))
            threading.Thread(target=server.handle_request, daemon=True).start()
            port = server.server_port
        elif other == "grpc":
            port = stack.enter_context(grpc_server({"/x.Other/Call": "OK"}))
        else:
            listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            port = listening.getsockname()[1]
        if other == "ends":
            threading.Thread(target=lambda: listening.accept()[0].close(), daemon=True).start()
        with pytest.raises(fleetbert.UserError, match=rf"--address {address}:{port}: what li"):
            engine.check_address(f"{address}:{port}")


@pytest.mark.parametrize("status", ["OK", "UNAUTHENTICATED"])
@pytest.mark.parametrize(
    ("address", "method"),
    [
        ("ray://127.0.0.1", "/ray.rpc.RayletDriver/ClusterInfo"),
        ("127.0.0.1", "/ray.rpc.NodeInfoGcsService/GetClusterId"),
    ],
)
def test_a_server_with_a_method_of_ray_is_ray(address, method, status):
    with grpc_server({method: status}) as port:
        on_ray.check_address(f"{address}:{port}")


def test_the_cause_is_found_between_the_stacks():
    error = "An error occurred.\n: Job aborted\nImportError: No module named 'x'\n\tat java"
    sentence = "ImportError: No module named 'x'; install it on each machine"
    assert remote.cause(RuntimeError(error)) == sentence
    error = "An error occurred.\n: org.apache.SparkException: too small\n\tat java.lang.Thread"
    assert remote.cause(RuntimeError(error)) == "org.apache.SparkException: too small"
    assert remote.cause(RuntimeError("Mismatch:\n  Python 3.11\n")) == "Mismatch: Python 3.11"
    assert remote.cause(RuntimeError()) == "RuntimeError"
