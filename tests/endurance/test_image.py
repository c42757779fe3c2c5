"""`make endurance`: the Dockerfile, built and run by podman. No registry is needed: what it begins
FROM is made of Debian's packages. As in kubernetes.yaml the container is read-only, runs as its
user, without capabilities and under a memory limit."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import requests
import same_answers
from grpc import insecure_channel
from grpc_stub import make_stub, request_of
from served import DEADLINE, ask

from fleetbert.client import Client
from fleetbert.engines import answer as answers

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "inference" / "Dockerfile"
TOOLS = ("crun", "debootstrap", "podman")
NAME, TEXTS = "fleetbert-server", ["word1 word2", "字3"]
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
HYBRID = Path("/sys/fs/cgroup/unified")
LIMITS = (
    *("--read-only", "--tmpfs", "/tmp", "--memory", "2g", "--cap-drop", "all"),
    *("--security-opt", "no-new-privileges", "--network", "host"),
    *("--no-healthcheck", "--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096"),
)

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, TOOLS)),
    reason=f"needs root, and `apt-get install --no-install-recommends {' '.join(TOOLS)}`",
)


@pytest.fixture(scope="module")
def podman():
    """podman(*words) returns its stdout; containers and images of its own, which are removed."""
    folder = tempfile.mkdtemp(prefix="image")  # podman refuses the long names of pytest's folders

    def run(*words: object) -> str:
        command = ["podman", "--root", f"{folder}/root", "--runroot", f"{folder}/run", *words]
        if HYBRID.is_dir():  # crun refuses cgroups of both versions
            hidden = f'umount {HYBRID} && exec "$@"'
            command = ["unshare", "--mount", "sh", "-c", hidden, "sh", *command]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    try:
        yield run
    finally:
        run("rm", "--all", "--force")
        run("rmi", "--all", "--force")
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def image(podman, tmp_path_factory):
    """What podman tells of the image."""
    base = re.search("(?m)^FROM (python:(.*)-slim)$", DOCKERFILE.read_text(encoding="utf-8"))
    folder = tmp_path_factory.mktemp("base")
    make_base(folder / "root", base[2])
    subprocess.run(["tar", "-C", folder / "root", "-cf", folder / "base.tar", "."], check=True)
    podman("import", folder / "base.tar", f"docker.io/library/{base[1]}")
    shutil.rmtree(folder)
    options = ("--isolation", "chroot", "--network", "host", "--pull=never", "--format", "docker")
    podman("build", *options, "--file", DOCKERFILE, "--tag", NAME, ROOT)
    told = [json.loads(podman("image", "inspect", name))[0] for name in (base[1], NAME)]
    below, whole = (about["Size"] / 1e6 for about in told)
    print(f"\n{NAME}: {whole:.0f} MB, of which the base has {below:.0f}")
    return told[1]


def make_base(root: Path, version: str) -> None:
    """Debian with its Python as `python`, and what this machine needs to reach packages."""
    packages = "ca-certificates,python-is-python3,python3-pip"
    command = ["debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", root]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    told = subprocess.run(["chroot", root, "python", "-V"], capture_output=True, text=True)
    assert told.stdout.startswith(f"Python {version}."), told
    for refusal in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        refusal.unlink()
    shutil.copy(CERTIFICATES, root / CERTIFICATES.relative_to("/"))
    settings = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True
    )
    index = re.findall(r"\.(index-url)='(.*)'", settings.stdout)
    lines = [f"{key} = {value}" for key, value in [("cert", CERTIFICATES), *index]]
    (root / "etc" / "pip.conf").write_text("\n".join(["[global]", *lines, ""]))


def test_the_image_answers_read_only_and_drains(podman, image, tiny_bundle, tmp_path):
    shutil.copytree(tiny_bundle, tmp_path / "models" / "sst" / "1")
    command = [*image["Config"]["Cmd"], "listen.http_port=0", "listen.grpc_port=0"]
    models = ("--volume", f"{tmp_path}/models:/models:ro")
    podman("run", "--detach", "--replace", "--name", "server", *LIMITS, *models, NAME, *command)
    until = time.monotonic() + DEADLINE
    while "\nready: sst (1)" not in (out := podman("logs", "server")):
        assert time.monotonic() < until, out
        time.sleep(1)
    http, grpc = (re.search(rf"{kind}://0\.0\.0\.0:(\d+)", out)[1] for kind in ("http", "grpc"))
    assert podman("exec", "server", "id", "-u").strip() == image["Config"]["User"]
    podman("exec", "server", "sh", "-c", "touch /tmp/x && ! touch /app/x")
    code = "from fleetbert.core import limits; print(limits.read())"
    assert "2.0 GiB by the cgroup" in podman("exec", "server", "python", "-c", code)
    health = [word.replace(":8000/", f":{http}/") for word in image["Healthcheck"]["Test"][1:]]
    podman("exec", "server", *health)

    expected = answers.answer(answers.load(tiny_bundle), TEXTS)
    with Client(f"127.0.0.1:{http}") as client:
        same_answers.check(client.infer("sst", TEXTS), expected, 1e-4)
    with insecure_channel(f"127.0.0.1:{grpc}") as channel:
        request = request_of(TEXTS, outputs=[{"name": "logits"}])
        reply = make_stub(channel).ModelInfer(request, timeout=DEADLINE)
    logits = np.frombuffer(reply.raw_output_contents[0], np.float32).reshape(len(TEXTS), -1)
    np.testing.assert_allclose(logits, [each.logits for each in expected], atol=1e-4)

    statuses: list[int] = []
    asking = threading.Thread(
        target=ask_until_it_leaves, args=(f"http://127.0.0.1:{http}", statuses)
    )
    asking.start()
    podman("stop", "--time", "30", "server")
    asking.join()
    assert podman("inspect", "--format", "{{.State.ExitCode}}", "server").strip() == "0"
    assert 200 in statuses and set(statuses) <= {200, 503}


def ask_until_it_leaves(url: str, statuses: list[int]) -> None:
    with contextlib.suppress(requests.ConnectionError):
        while True:
            statuses.append(ask(url, TEXTS[0]).status_code)
