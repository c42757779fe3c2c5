"""`fleetbert launch`: what each process is told, and what a user may say."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys

import pytest

from fleetbert.core import limits

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


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("", 0))) for _ in range(count)]
        return [found.getsockname()[1] for found in sockets]


def test_the_environment_is_that_of_paddles_launcher(launch, tmp_path):
    """Compared with what the launcher of the installed Paddle gives to the same script. What an
    enclosing launcher said does not reach the processes."""
    words = ("--config", "a b", "x=1", "--debug", "--servers")
    foreign = {"PADDLE_CURRENT_ENDPOINT": "x:1", "FLEETBERT_SUPERVISOR": "1,2"}
    ours = launch(DUMP + WAIT, *TWO, words=words, environ={**foreign, "PADDLE_TRAINER_ID": "7"})
    (tmp_path / "stock").mkdir()
    (tmp_path / "stock" / "child.py").write_text(DUMP + WAIT)
    ports = free_ports(4)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    command = [sys.executable, "-m", "paddle.distributed.launch", "--run_mode", "ps"]
    command += ["--servers", ",".join(addresses[:2]), "--trainers", ",".join(addresses[2:])]
    command += ["--with_gloo", "0", "--host", "127.0.0.1", "child.py"]
    environ = {**os.environ, "TEST_FOLDER": str(tmp_path / "stock")}
    done = subprocess.run(
        command, cwd=tmp_path / "stock", env=environ, capture_output=True, timeout=480, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert ours.ended() == 0, ours.stderr
    stock, own = dumped(tmp_path / "stock"), dumped(ours.folder)
    assert len(stock) == len(own) == 4
    differ = ("PADDLE_LOG_DIR", "PADDLE_GLOO_FS_PATH", "POD_NAME")
    differ += ("PADDLE_PORT", "PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_TRAINER_ENDPOINTS")
    for key, dump in own.items():
        assert dump["argv"] == ["child.py", *words]
        assert not foreign.keys() & dump["environ"].keys()
        added, expected = (
            {name: value for name, value in given.items() if name.startswith(OF_LAUNCHERS)}
            for given in (dump["environ"], stock[key]["environ"])
        )
        expected.pop("PADDLE_BACKUP_ENV_PATH", None)
        assert added.keys() == expected.keys()
        same = added.keys() - set(differ)
        assert {name: added[name] for name in same} == {name: expected[name] for name in same}
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
