"""`fleetbert launch`: what each process is told, and what a user may say."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys

import pytest

from fleetbert import limits

OF_LAUNCHERS = ("PADDLE_", "POD_", "TRAINING_ROLE")
TWO = ("--servers", "2", "--trainers", "2")

DUMP = """
import json, os, pathlib, sys
role, port = os.environ["TRAINING_ROLE"], os.environ["PADDLE_PORT"]
here = pathlib.Path(os.environ["TEST_FOLDER"])
part = here / f"{role}.{port}.part"
part.write_text(json.dumps({"environ": dict(os.environ), "argv": sys.argv}))
part.rename(here / f"{role}.{port}.json")
"""
WAIT = """
wanted = len(os.environ["PADDLE_PSERVERS_IP_PORT_LIST"].split(","))
wanted += int(os.environ["PADDLE_TRAINERS_NUM"])
while len(list(here.glob("*.json"))) < wanted:
    pass
"""


def dumped(folder):
    """{("PSERVER", 0): {"environ": ..., "argv": ...}, ...} in the order of the ports."""
    found = {}
    for role in ("PSERVER", "TRAINER"):
        dumps = [json.loads(path.read_text()) for path in folder.glob(f"{role}.*.json")]
        name = "PADDLE_PSERVERS_IP_PORT_LIST" if role == "PSERVER" else "PADDLE_TRAINER_ENDPOINTS"
        for dump in dumps:
            environ = dump["environ"]
            address = f"{environ['POD_IP']}:{environ['PADDLE_PORT']}"
            found[role, environ[name].split(",").index(address)] = dump
    return found


def without(environ, *names):
    return {name: value for name, value in environ.items() if name not in names}


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("", 0))) for _ in range(count)]
        return [found.getsockname()[1] for found in sockets]


def test_the_environment_is_that_of_paddles_launcher(launch, tmp_path):
    """Compared with what the launcher of the installed Paddle gives to the same script."""
    ours = launch(DUMP + WAIT, *TWO, words=("--config", "a b", "x=1", "--debug", "--servers"))
    (tmp_path / "stock").mkdir()
    (tmp_path / "stock" / "child.py").write_text(DUMP + WAIT)
    ports = free_ports(4)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    command = [sys.executable, "-m", "paddle.distributed.launch", "--run_mode", "ps"]
    command += ["--servers", ",".join(addresses[:2]), "--trainers", ",".join(addresses[2:])]
    command += ["--with_gloo", "0", "--host", "127.0.0.1", "child.py"]
    done = subprocess.run(
        command,
        cwd=tmp_path / "stock",
        env={**os.environ, "TEST_FOLDER": str(tmp_path / "stock")},
        capture_output=True,
        timeout=480,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert ours.ended() == 0, ours.stderr
    stock, own = dumped(tmp_path / "stock"), dumped(ours.folder)
    assert len(stock) == len(own) == 4
    paths = ("PADDLE_LOG_DIR", "PADDLE_GLOO_FS_PATH", "POD_NAME")
    values = ("PADDLE_PORT", "PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_TRAINER_ENDPOINTS")
    for key, dump in own.items():
        assert dump["argv"] == ["child.py", "--config", "a b", "x=1", "--debug", "--servers"]
        added, expected = (
            {name: value for name, value in environ.items() if name.startswith(OF_LAUNCHERS)}
            for environ in (dump["environ"], stock[key]["environ"])
        )
        expected.pop("PADDLE_BACKUP_ENV_PATH", None)
        assert added.keys() == expected.keys()
        assert without(added, *paths, *values) == without(expected, *paths, *values)
        assert len(set(added["PADDLE_PSERVERS_IP_PORT_LIST"].split(","))) == 2
    runs = {dump["environ"]["FLEETBERT_RUN"] for dump in own.values()}
    assert len(runs) == 1
    assert {dump["environ"]["FLEETBERT_RESTARTED"] for dump in own.values()} == {"0"}
    assert not os.path.exists(runs.pop())  # noqa: PTH110


@pytest.mark.parametrize("given", [None, "3"])
def test_trainers_share_the_processors(launch, monkeypatch, given):
    """As fleetbert sees it in the trainer, too, where it sets what is not set yet."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    body = """
print("given", environ["OMP_NUM_THREADS"])
import fleetbert.compat.prepared
print("kept", environ["OMP_NUM_THREADS"])
"""
    job = launch(body, *TWO, environ={"OMP_NUM_THREADS": given} if given else {})
    assert job.ended() == 0, job.stderr
    for name in ("server 0", "server 1", "trainer 0", "trainer 1"):
        shared = str(max(1, limits.read().processors // 2)) if "trainer" in name else "1"
        lines = [line.decode() for line in job.merged if line.startswith(f"[{name}]".encode())]
        assert lines == [f"[{name}] given {given or shared}", f"[{name}] kept {given or shared}"]


def test_what_an_enclosing_launcher_said_does_not_reach_the_processes(launch):
    foreign = {"PADDLE_CURRENT_ENDPOINT": "x:1", "FLEETBERT_SUPERVISOR": "1,2"}
    job = launch(
        DUMP + WAIT,
        "--servers",
        "1",
        "--trainers",
        "1",
        environ={**foreign, "PADDLE_TRAINER_ID": "7"},
    )
    assert job.ended() == 0, job.stderr
    found = dumped(job.folder)
    assert "PADDLE_TRAINER_ID" not in found["PSERVER", 0]["environ"]
    assert found["TRAINER", 0]["environ"]["PADDLE_TRAINER_ID"] == "0"
    assert not foreign.keys() & found["TRAINER", 0]["environ"].keys()


def test_ports_are_reserved_and_can_be_listened_at(launch):
    """By the process they are for, and given to nobody else that asks for any port."""
    body = """
import socket
own = int(environ["PADDLE_PORT"])
others = set()
for _ in range(40000 if name == "trainer.0" else 0):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        others.add(other.getsockname()[1])
addresses = environ["PADDLE_PSERVERS_IP_PORT_LIST"] + "," + environ["PADDLE_TRAINER_ENDPOINTS"]
assert not others & {int(address.split(":")[1]) for address in addresses.split(",")}
with socket.create_server(("127.0.0.1", own)) as server:
    with socket.create_connection(("127.0.0.1", own)):
        server.accept()
touch(run / name)
wait_for(*(run / n for n in ("server.0", "server.1", "trainer.0", "trainer.1")))
"""
    job = launch(body, *TWO)
    assert job.ended() == 0, b"\n".join(job.merged).decode()


FLEET = """
import numpy as np
import fleetbert.compat.prepared
import paddle
from paddle.distributed import fleet

paddle.enable_static()
fleet.init(fleet.PaddleCloudRoleMaker(is_collective=False))
if fleet.is_server():
    print("server", fleet.server_index(), fleet.server_num(), *fleet.server_endpoints())
else:
    print("trainer", fleet.worker_index(), fleet.worker_num(), *fleet.server_endpoints())
    print("threads", environ["OMP_NUM_THREADS"])
x = paddle.static.data("x", [None, 4], "float32")
loss = paddle.mean(paddle.static.nn.fc(x, 3))
strategy = fleet.DistributedStrategy()
strategy.a_sync = True
fleet.distributed_optimizer(paddle.optimizer.SGD(0.1), strategy).minimize(loss)
if fleet.is_server():
    fleet.init_server()
    touch(run / name)
    fleet.run_server()
    print("server left")
else:
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(paddle.static.default_startup_program())
    if name != "trainer.0":
        wait_for(run / "trainer.0.ready")
    fleet.init_worker()
    touch(run / f"{name}.ready")
    (value,) = executor.run(feed={"x": np.ones((2, 4), "float32")}, fetch_list=[loss])
    print("a step", np.isfinite(value).all())
    touch(run / f"{name}.done")
    if name == "trainer.0":
        wait_for(run / "trainer.1.done")
        fleet.fleet._runtime_handle._worker.stop_server()
    fleet.stop_worker()
    touch(run / f"{name}.done")
sys.stdout.flush()
os._exit(0)
"""


def test_fleet_finds_its_servers_and_trainers(launch):
    """Paddle's own servers listen at the reserved ports, and trainers reach them."""
    job = launch(FLEET, *TWO, environ={"GLOG_v": "0"})
    code = job.ended()
    text = b"\n".join(job.merged).decode(errors="replace")
    assert code == 0, text
    lines = text.splitlines()
    addresses = next(line for line in lines if line.startswith("[server 0] server 0 2 ")).split()[
        5:
    ]
    assert len(set(addresses)) == 2
    for number in (0, 1):
        assert f"[server {number}] server {number} 2 {' '.join(addresses)}" in lines
        assert f"[trainer {number}] trainer {number} 2 {' '.join(addresses)}" in lines
        assert f"[trainer {number}] a step True" in lines
        assert f"[server {number}] server left" in lines
    assert job.is_clean()
