"""The server as a process: its start, its answers, its end."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import threading
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
import requests
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_stub import make_stub
from served import DEADLINE, FAKE, REAL, Served, ask, serving

from fleetbert import cli
from fleetbert.client import Client
from fleetbert.deploy.inference.protocol import inference_pb2
from fleetbert.engines import answer as answers

TEXTS = ["word1", "word2 word3 字1", "word4 " * 40, "\x01"]


@pytest.fixture(scope="module")
def real(tiny_bundle, tmp_path_factory):
    """`python -m fleetbert.deploy.inference` with one model in float32 on one worker."""
    folder = tmp_path_factory.mktemp("real")
    shutil.copytree(tiny_bundle, folder / "models" / "tiny" / "1")
    words = [f"repository.path={folder / 'models'}", "repository.default.variant=float32"]
    with serving(folder, *words, "engine.workers=1", "engine.threads=1", command=REAL) as served:
        yield served


def mapped(process: psutil.Process) -> bool:
    """Whether Paddle is in a process's memory."""
    return "libpaddle" in Path(f"/proc/{process.pid}/maps").read_text()


def test_answers_are_those_of_the_engine_over_http_and_grpc(real, tiny_bundle):
    expected = answers.answer(answers.load(tiny_bundle), TEXTS)
    assert real.out.startswith("serving tiny (1) on http://127.0.0.1:")
    with Client(real.http) as client:
        found = client.infer("tiny", TEXTS)
    assert [one.label for one in found] == [one.label for one in expected]
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one.logits, other.logits, atol=1e-5)
        assert one.scores == pytest.approx(other.scores, abs=1e-5)
        assert one.exit_layer == 2
    request = inference_pb2.ModelInferRequest(model_name="tiny")
    tensor = request.inputs.add(name="text", datatype="BYTES", shape=[len(TEXTS)])
    tensor.contents.bytes_contents.extend(text.encode() for text in TEXTS)
    request.outputs.add(name="logits")
    with grpc.insecure_channel(real.grpc) as channel:
        reply = make_stub(channel).ModelInfer(request, timeout=DEADLINE)
    logits = np.frombuffer(reply.raw_output_contents[0], np.float32).reshape(len(TEXTS), -1)
    np.testing.assert_allclose(logits, [one.logits for one in expected], atol=1e-5)


def test_folders_whose_names_are_no_utf8_are_a_line_each(real):
    models = real.log_path.parent / "models"
    for name in (b"mod\xff\xfe", b"tiny/1\xe9"):
        Path(os.fsdecode(bytes(models) + b"/" + name)).mkdir()

    def ignored():
        return [line for line in real.lines() if "is ignored" in line["message"]]

    real.wait_for(lambda: len(ignored()) == 2)
    assert [line["message"].partition(" is")[0] for line in ignored()] == [
        rf"{models}/mod\udcff\udcfe",
        rf"{models}/tiny/1\udce9",
    ]
    assert "Traceback" not in real.log
    assert requests.get(f"{real.http}/v2/health/ready").status_code == 200


HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(
    not (HUGE_PAGES.exists() and "[madvise]" in HUGE_PAGES.read_text())
    or "GLIBC_TUNABLES" in os.environ,
    reason="the kernel gives huge pages to all programs or to none, or somebody else decides",
)
def test_workers_ask_for_huge_pages(real):
    def asks(process):
        flags = Path(f"/proc/{process.pid}/smaps").read_text().split("VmFlags:")[1:]
        return any("hg" in line.split("\n")[0].split() for line in flags)

    main = psutil.Process(real.process.pid)
    assert all(asks(child) for child in main.children(recursive=True) if mapped(child))
    assert not asks(main)


def test_the_listening_process_holds_no_paddle(real):
    main = psutil.Process(real.process.pid)
    assert not mapped(main)
    assert any(mapped(child) for child in main.children(recursive=True))  # maps would tell


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_workers_leave_signals_of_the_whole_group_to_the_parent(real, number):
    main = psutil.Process(real.process.pid)
    before = {child.pid for child in main.children(recursive=True) if mapped(child)}
    for pid in before:
        os.kill(pid, number)
    with Client(real.http) as client:
        assert client.infer("tiny", TEXTS)
    assert {child.pid for child in main.children(recursive=True) if mapped(child)} == before


def test_not_ready_while_models_load(tmp_path):
    ready = tmp_path / "ready"
    with serving(tmp_path, environ={"FAKE_READY_FILE": str(ready)}, ready=False) as served:
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
        assert served.out == ""
        ready.touch()
        served.wait_until_ready()
        assert requests.get(f"{served.http}/v2/health/ready").status_code == 200
        with grpc.insecure_channel(served.grpc) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            reply = health.Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="no IPv6 here")
@pytest.mark.parametrize("host", ["::", "[::]", "::1", "[::1]"])
def test_ipv6_and_with_the_wildcard_ipv4_too(tmp_path, host):
    with serving(tmp_path, f"listen.host={host}") as served:
        plain = host.strip("[]")
        assert served.http.startswith(f"http://[{plain}]:")
        hosts = ["[::1]", "127.0.0.1"] if plain == "::" else ["[::1]"]
        for reached in hosts:
            port = served.http.rpartition(":")[2]
            assert ask(f"http://{reached}:{port}", "good").status_code == 200
            with grpc.insecure_channel(f"{reached}:{served.grpc.rpartition(':')[2]}") as channel:
                health = health_pb2_grpc.HealthStub(channel)
                reply = health.Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        assert served.end() == 0


def test_an_address_without_quotes_in_yaml_is_told(tmp_path, capsys):
    path = tmp_path / "server.yaml"
    path.write_text("listen:\n  host: ::\n")
    with pytest.raises(SystemExit):
        cli.main(["serve", "--config", str(path)])
    said = capsys.readouterr().err
    assert "line 2" in said and 'has to be quoted: "::"' in said


@pytest.mark.parametrize("key", ["http_port", "grpc_port", "admin_port"])
def test_a_port_in_use_is_one_sentence(tmp_path, key):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        served = Served([*FAKE, "listen.host=127.0.0.1", "listen.http_port=0",
                         "listen.grpc_port=0", f"listen.{key}={port}"], tmp_path)  # fmt: skip
        try:
            assert served.process.wait(DEADLINE) == 2
        finally:
            served.kill()
    assert served.log.startswith(f"error: 127.0.0.1:{port} cannot be listened on: Address")
    assert served.log.count("\n") == 1 and served.out == ""


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--repository", "{folder}/none"], "none is no folder"),
        (["--repository", "{folder}"], "holds no model: copy a bundle"),
        (["--repository", "{folder}", "listen.htp_port=1"], "did you mean listen.http_port"),
        (["--config", "{folder}/none.yaml"], "none.yaml: cannot be read"),
        (["--http-port", "70000"], "listen.http_port"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, capsys, words, part):
    (tmp_path / "model" / "1").mkdir(parents=True)
    (tmp_path / ".hidden" / "1").mkdir(parents=True)
    (tmp_path / ".hidden" / "1" / "manifest.json").touch()
    with pytest.raises(SystemExit) as caught:
        cli.main(["serve", *(word.format(folder=tmp_path) for word in words)])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert part in said and said.count("\n") == 1


@pytest.mark.parametrize(
    "signals",
    [[signal.SIGTERM], [signal.SIGHUP], [signal.SIGHUP] * 2, [signal.SIGTERM, signal.SIGHUP]],
)
def test_sigterm_and_sighup_drain(tmp_path, signals):
    with serving(tmp_path, "logs.requests=true") as served:
        slow = []
        thread = threading.Thread(target=lambda: slow.append(ask(served.http, "sleep 3")))
        thread.start()
        with requests.Session() as session:
            served.wait_for(lambda: "asleep" in served.log)
            for number in signals:
                served.process.send_signal(number)
            served.wait_for(
                lambda: session.get(f"{served.http}/v2/health/ready").status_code == 503
            )
            refused = ask(served.http, "good")
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
        assert "leaving" in refused.json()["error"]
        assert served.process.wait(DEADLINE) == 0
        thread.join(DEADLINE)
        assert slow[0].status_code == 200


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


def test_what_workers_print_is_lines_of_the_json_log(tiny_bundle, tmp_path):
    """Of Paddle's import with several threads, and of its C++ where a worker crashes."""
    shutil.copytree(tiny_bundle, tmp_path / "models" / "tiny" / "1")
    words = [f"repository.path={tmp_path / 'models'}", "repository.default.variant=float32"]
    words += ["engine.workers=1", "engine.threads=2", "engine.pin=false"]
    environ = {"OMP_NUM_THREADS": "3"}
    with serving(tmp_path, *words, command=REAL, environ=environ) as served:
        children = psutil.Process(served.process.pid).children(recursive=True)
        [worker] = [child for child in children if mapped(child)]
        worker.send_signal(signal.SIGSEGV)
        said = f"worker {worker.pid}: "
        served.wait_for(lambda: any(said in line["message"] for line in served.lines()))
        with Client(served.http) as client:
            assert client.infer("tiny", TEXTS)
    assert any("SIGSEGV" in line["message"] for line in served.lines())
    assert "OMP_NUM_THREADS" not in served.log
