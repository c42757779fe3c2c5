"""The server as a process: its start, its answers, its end."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import threading
import time
from pathlib import Path

import grpc
import light
import psutil
import pytest
import requests
import uvloop
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_stub import make_stub, request_of
from served import DEADLINE, FAKE, LIGHT, ask, connect, serving, settings_of

from fleetbert.cli import main as cli
from fleetbert.deploy.inference import command
from fleetbert.deploy.inference.protocol import inference_pb2
from fleetbert.deploy.inference.workers import process

THREADS = "TOKENIZERS_PARALLELISM"


def assert_serves_grpc(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        reply = health.Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE)
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_not_ready_while_models_load(tmp_path):
    ready = tmp_path / "ready"
    environ = {"FAKE_READY_FILE": str(ready)}
    with serving(tmp_path, "batching.batch_tokens=64", environ=environ, ready=False) as served:
        main = psutil.Process(served.process.pid)
        ports = served.wait_for(
            lambda: len(found := [c.laddr.port for c in main.net_connections()]) > 1 and found
        )
        codes = set()
        for port in ports:
            try:
                url = f"http://127.0.0.1:{port}/v2/health/"
                codes.add(tuple(requests.get(url + name).status_code for name in ("live", "ready")))
            except requests.ConnectionError:  # gRPC's port
                continue
        assert codes == {(200, 503)}
        first = served.wait_for(lambda: served.out)
        assert first.startswith("serving on http://127.0.0.1:")
        assert first.endswith("; loading loading (1), sst (3)\n")
        ready.touch()
        served.wait_until_ready()
        assert served.out.startswith(f"{first}ready: ") and " sst (1, 2), " in served.out
        assert requests.get(f"{served.http}/v2/health/ready").status_code == 200
        assert_serves_grpc(served.grpc)
        assert requests.get(f"{served.http}/info?model=sst").json()["max_batch_tokens"] == 64


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="no IPv6 here")
@pytest.mark.parametrize("host", ["[::]", "::1"])
def test_ipv6_and_with_the_wildcard_ipv4_too(tmp_path, host):
    with serving(tmp_path, f"listen.host={host}") as served:
        plain = host.strip("[]")
        assert served.http.startswith(f"http://[{plain}]:")
        hosts = ["[::1]", "127.0.0.1"] if plain == "::" else ["[::1]"]
        for reached in hosts:
            port = served.http.rpartition(":")[2]
            assert ask(f"http://{reached}:{port}", "good").status_code == 200
            assert_serves_grpc(f"{reached}:{served.grpc.rpartition(':')[2]}")
        assert served.end() == 0


@pytest.mark.parametrize("key", ["http_port", "grpc_port"])
def test_a_port_in_use_is_one_sentence(tmp_path, key):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with serving(tmp_path, f"listen.{key}={port}", ready=False) as served:
            assert served.process.wait(DEADLINE) == 2
    assert served.log.startswith(f"error: 127.0.0.1:{port} cannot be listened on: Address")
    assert served.log.count("\n") == 1 and served.out == ""


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--repository", "{folder}/none"], "none is no folder"),
        (["--repository", "{folder}"], "holds no model: copy a bundle"),
        (["--repository", "{folder}/a"], "sst2/v1 is not named like a version; rename it"),
        (["--repository", "{folder}/b"], "sst2/0001 is not named like a version; rename it"),
        (["--repository", "{folder}", "--name", "m"], "there is no {folder}/manifest.json; name"),
        (["--repository", "{folder}/a/sst2/v1", "--name", "a/b"], "'a/b' is no name of a model"),
        (["--repository", "{folder}", "listen.htp_port=1"], "did you mean listen.http_port"),
        (["--config", "{folder}/none.yaml"], "none.yaml: cannot be read"),
        (["--config", "{folder}/server.yaml"], 'an address of IPv6 has to be quoted: "::"'),
        (["--http-port", "70000"], "listen.http_port"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, capsys, words, part):
    (tmp_path / "model" / "1").mkdir(parents=True)
    for version in (".hidden/1", "a/sst2/v1", "b/sst2/0001"):
        (tmp_path / version).mkdir(parents=True)
        (tmp_path / version / "manifest.json").touch()
    (tmp_path / "server.yaml").write_text("listen:\n  host: ::\n")
    with pytest.raises(SystemExit) as caught:
        cli.main(["serve", *(word.format(folder=tmp_path) for word in words)])
    assert caught.value.code == 2
    output = capsys.readouterr().err
    assert part.format(folder=tmp_path) in output and output.count("\n") == 1


@pytest.mark.parametrize(("given", "expected"), [(None, "false"), ("true", "true")])
def test_texts_are_tokenized_without_threads_unless_the_user_wants_them(
    tmp_path, monkeypatch, given, expected
):
    def run(main):
        main.close()
        found.append(os.environ[THREADS])

    found = []
    monkeypatch.setenv(THREADS, given or "")  # is taken back afterwards
    if given is None:
        del os.environ[THREADS]
    monkeypatch.setattr(uvloop, "run", run)
    monkeypatch.setattr(process, "start_early", lambda _: None)
    (tmp_path / "model" / "1").mkdir(parents=True)
    (tmp_path / "model" / "1" / "manifest.json").touch()
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    command.run(parser.parse_args(["--repository", str(tmp_path)]))
    assert found == [expected]


def test_old_and_idle_connections_are_ended(tmp_path):
    """So that a balancer that counts connections spreads clients again."""
    request = b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n"
    with serving(tmp_path, "listen.age_seconds=1.5", "listen.idle_seconds=1") as served:
        with connect(served.http) as client:
            begin, answer = time.monotonic(), b""
            while b"connection: close" not in answer:
                client.sendall(request)
                answer = client.recv(65536)
                assert answer.startswith(b"HTTP/1.1 200 ")
                time.sleep(0.2)
            assert time.monotonic() - begin >= 1.5 and client.recv(100) == b""
        with connect(served.http) as client:
            client.sendall(request)
            assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
            assert client.recv(100) == b""  # idle
        with grpc.insecure_channel(served.grpc) as channel:
            seen, ready = [], grpc.ChannelConnectivity.READY
            channel.subscribe(seen.append, try_to_connect=True)
            stub, until = make_stub(channel), time.monotonic() + DEADLINE
            while seen.count(ready) < 2:  # no call is lost by it
                assert stub.ServerLive(inference_pb2.ServerLiveRequest(), timeout=DEADLINE).live
                assert time.monotonic() < until
                time.sleep(0.05)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_while_models_load_ends_at_once(tmp_path, number, code):
    for version in range(1, 4):
        light.make_bundle(tmp_path / "models" / "tiny" / str(version))
    words = settings_of(tmp_path / "models", "repository.default.versions=all")
    words += ["engine.workers=2", "listen.grace_seconds=1000"]
    environ = {"LIGHT_OPEN_SECONDS": "1000"}
    with serving(tmp_path, *words, command=LIGHT, environ=environ, ready=False) as served:
        main = psutil.Process(served.process.pid)
        children = served.wait_for(lambda: len(main.net_connections()) > 1 and main.children())
        assert served.end(number) == code
        assert "Traceback" not in served.log
        served.wait_for(lambda: not any(child.is_running() for child in children), ended=True)


def test_a_disk_that_does_not_answer_keeps_no_server_from_its_end(tmp_path):
    light.make_bundle(tmp_path / "models" / "tiny" / "1")
    words = settings_of(tmp_path / "models", "repository.poll_seconds=0.1")
    with serving(tmp_path, *words, command=LIGHT) as served, contextlib.ExitStack() as stack:
        manifest = tmp_path / "models" / "tiny" / "2" / "manifest.json"
        manifest.parent.mkdir()
        os.mkfifo(manifest)

        def reads():
            with contextlib.suppress(OSError):  # until it is opened to be read
                stack.callback(os.close, os.open(manifest, os.O_WRONLY | os.O_NONBLOCK))
                return True

        served.wait_for(reads)
        assert served.end() == 0


@pytest.mark.parametrize(
    "signals",
    [[signal.SIGTERM], [signal.SIGHUP] * 2, [signal.SIGTERM, signal.SIGHUP]],
)
def test_sigterm_and_sighup_drain(tmp_path, signals):
    with serving(tmp_path, "logs.requests=true") as served:
        slow = []
        thread = threading.Thread(target=lambda: slow.append(ask(served.http, "sleep 5")))
        thread.start()
        with requests.Session() as session, grpc.insecure_channel(served.grpc) as channel:
            states: list[grpc.ChannelConnectivity] = []
            channel.subscribe(states.append)
            call = make_stub(channel).ModelInfer.future(request_of(["sleep 5"]), timeout=DEADLINE)
            served.wait_for(lambda: served.log.count("asleep") == 2)
            for number in signals:
                served.process.send_signal(number)
            served.wait_for(
                lambda: session.get(f"{served.http}/v2/health/ready").status_code == 503
            )
            refused = ask(served.http, "good")
            # GOAWAY: the next call takes another connection, to another server where there is one.
            served.wait_for(lambda: states[-1] is grpc.ChannelConnectivity.IDLE)
            assert not call.done()
            assert call.result().outputs[0].name == "label"
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
        assert "leaving" in refused.json()["error"]
        assert refused.headers["connection"] == "close"
        assert served.process.wait(DEADLINE) == 0
        thread.join(DEADLINE)
        assert slow[0].status_code == 200 and slow[0].headers["connection"] == "close"


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told(tmp_path, abstract):
    """As of a service of Type=notify."""
    address = f"\0{tmp_path}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(address)
        channel.settimeout(DEADLINE)
        environ = {"NOTIFY_SOCKET": address.replace("\0", "@")}
        with serving(tmp_path, environ=environ) as served:
            first, second = channel.recv(4096), channel.recv(4096)
            assert first.startswith(f"READY=1\nSTATUS=serving on {served.http}, grpc".encode())
            assert second.startswith(b"STATUS=ready: ") and b"sst (1, 2)" in second
            assert served.end() == 0
        assert channel.recv(4096).startswith(b"STOPPING=1\n")


def test_sighup_that_nohup_ignores_stays_ignored(tmp_path):
    with serving(tmp_path, command=["nohup", *FAKE]) as served:
        served.process.send_signal(signal.SIGHUP)
        assert ask(served.http, "good").status_code == 200
        assert requests.get(f"{served.http}/v2/health/ready").status_code == 200
        assert served.end() == 0
        assert served.log.count("leaving") == 1


@pytest.mark.parametrize(
    ("grace", "signals", "code"),
    [
        (0.2, [signal.SIGTERM], 0),
        (1000, [signal.SIGTERM, signal.SIGTERM], 143),
        (1000, [signal.SIGTERM, signal.SIGINT], 130),
        (0, [signal.SIGINT], 130),
    ],
)
def test_leaving_before_all_is_answered(tmp_path, grace, signals, code):
    with serving(tmp_path, f"listen.grace_seconds={grace}") as served:

        def asking():
            with contextlib.suppress(requests.RequestException):
                ask(served.http, "sleep 1000")

        thread = threading.Thread(target=asking)
        thread.start()
        served.wait_for(lambda: "asleep" in served.log)
        served.process.send_signal(signals[0])
        served.wait_for(lambda: '"leaving"' in served.log, ended=True)
        for number in signals[1:]:
            served.process.send_signal(number)
        assert served.process.wait(DEADLINE) == code, served.log
        thread.join(DEADLINE)
        assert "Traceback" not in served.log
