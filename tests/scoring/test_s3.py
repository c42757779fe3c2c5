"""`fleetbert predict` from s3:// to s3://, on moto's server."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import commands
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

if not all(map(importlib.util.find_spec, ("s3fs", "moto"))):
    pytest.skip("needs `pip install s3fs 'moto[server]'`", allow_module_level=True)

ROWS = 20_000


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of moto's server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (tmp_path_factory.mktemp("moto") / "log.txt").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until = time.monotonic() + 300
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def bucket(server, monkeypatch):
    """s3fs, where three files of texts are in s3://bucket/in."""
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem.clear_instance_cache()
    files = s3fs.S3FileSystem(use_listings_cache=False)
    files.mkdirs("bucket", exist_ok=True)
    for number in range(3):
        numbers = range(number * ROWS, (number + 1) * ROWS)
        table = pa.table({"id": numbers, "text": [f"word{number % 30}" for number in numbers]})
        with files.open(f"bucket/in/part={number}/a.parquet", "wb") as stream:
            pq.write_table(table, stream)
    yield files
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def words(tiny_bundle):
    words = ["--bundle", tiny_bundle, "--input", "s3://bucket/in", "--output", "s3://bucket/out"]
    return ["predict", *map(str, words)]


@pytest.mark.slow
def test_a_killed_run_goes_on(bucket, words):
    first = "bucket/out/part=0/a.parquet"
    running = subprocess.Popen(
        [sys.executable, "-m", "fleetbert.cli", *words], stderr=subprocess.DEVNULL
    )
    try:
        until = time.monotonic() + 300
        while not bucket.exists(first):
            assert running.poll() is None and time.monotonic() < until
            time.sleep(0.02)
    finally:
        os.kill(running.pid, signal.SIGKILL)
        running.wait()
    assert not bucket.exists("bucket/out/part=2/a.parquet")
    before = bucket.info(first)["LastModified"]
    assert commands.call(*words) == 0
    assert bucket.info(first)["LastModified"] == before
    paths = sorted(path for path in bucket.find("bucket/out") if not path.endswith(".part"))
    assert paths == [f"bucket/out/part={number}/a.parquet" for number in range(3)]
    ids = [pq.read_table(bucket.open(path), columns=["id"])["id"] for path in paths]
    assert [number for column in ids for number in column.to_pylist()] == list(range(3 * ROWS))


@pytest.mark.parametrize("fault", ["unreachable", "refused", "no bucket"])
def test_errors_are_one_sentence(bucket, words, server, monkeypatch, capsys, fault):
    import s3fs

    expected = {
        "unreachable": "--input s3://bucket/in: Could not connect to the endpoint URL",
        "refused": "--input s3://bucket/in: Forbidden; look at the address and at the cred",
        "no bucket": "--input s3://none/in: no file or folder is there; name one that is",
    }[fault]
    s3fs.S3FileSystem.clear_instance_cache()
    if fault == "unreachable":
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    elif fault == "no bucket":
        words[4] = "s3://none/in"
    with authorization(server) if fault == "refused" else contextlib.nullcontext():
        assert commands.call(*words) == 2
    err = capsys.readouterr().err
    (sentence,) = [line for line in err.splitlines() if "error: " in line]
    assert expected in sentence, err
    assert "Traceback" not in err


@contextlib.contextmanager
def authorization(server: str):
    """The server looks at the credentials."""

    def after(actions: str) -> None:
        urllib.request.urlopen(
            urllib.request.Request(
                f"{server}/moto-api/reset-auth", actions.encode(), {"Content-Type": "text/plain"}
            )
        ).close()

    after("0")
    try:
        yield
    finally:
        after("inf")
