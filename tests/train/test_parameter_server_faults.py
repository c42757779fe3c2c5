"""What goes wrong with servers and trainers: asked to stop, killed, started wrongly."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import servers
import tiny_job
from processes import DEADLINE, wait_for, wait_for_loss
from servers import ended, members, said

from fleetbert import config
from fleetbert.compat import environment, parameter_server
from fleetbert.errors import UserError
from fleetbert.train import job as training
from fleetbert.train.strategies import connect
from fleetbert.train.strategies.parameter_server import rendezvous
from fleetbert.train.strategies.parameter_server.figures import Servers

JOB = {"strategy.name": "parameter_server", "model.dropout": 0.0}


@pytest.fixture
def start(tiny_data, tmp_path_factory):
    """start(changes, output=None) → process with `.output`; none of it outlives a test."""
    started = []

    def call(changes, output=None, **counts):
        folder = tmp_path_factory.mktemp("job")
        output = output or folder / "output"
        path = tiny_job.write_config(folder / "job.yaml", tiny_data, output, {**JOB, **changes})
        process = servers.start(folder, path, **counts)
        process.output = output
        started.append(process)
        return process

    yield call
    for process in started:
        servers.kill(process)


def steps_of(output: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in output.glob("checkpoints/step-*"))


def test_asked_to_stop_and_started_again_it_loses_no_step(start):
    """The trainers are asked while at different steps, and stop after the same one."""
    changes = {
        "strategy.mode": "async",
        "trainer.epochs": 20,
        # Nothing else saves, however far they are when the signal comes.
        "trainer.checkpoint_every": 200,
        "trainer.eval_every": 200,
    }
    process = start(changes, servers=1)
    wait_for_loss(process, process.output, 4)
    members(process, "TRAINER")[1].terminate()  # one of them is enough
    process.wait(timeout=DEADLINE)
    found = re.search("stopped: SIGTERM: saved step ([0-9]+) of 200; the same", said(process))
    assert found, said(process)
    (step,) = steps_of(process.output)
    assert step == int(found[1])
    assert not members(process)

    more = {**changes, "trainer.max_steps": step + 4}
    again = start(more, output=process.output, servers=1)
    ended(again)
    losses = tiny_job.losses(process.output)
    assert list(losses) == list(range(1, step + 5))
    summary = json.loads((process.output / "summary.json").read_text())
    assert (summary["resumed_at"], summary["steps"]) == (step, step + 4)
    assert not list(process.output.glob(".run-*"))


def test_who_has_gone_on_after_a_step_does_not_stop_after_it(tmp_path):
    """One trainer is asked after the other has looked, and is at a barrier after the same step."""
    first, second = (rendezvous.Rendezvous(tmp_path / "run", rank, 2) for rank in range(2))
    looked = threading.Event()

    def steps(own: rendezvous.Rendezvous, asked: bool) -> list[bool]:
        own.steps = 3
        stopped = [own.stops(asked)]
        looked.set()
        own.barrier()
        own.steps = 4
        return [*stopped, own.stops(False)]

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(steps, first, False)
        assert looked.wait(DEADLINE)
        assert steps(second, True) == [False, True]
        assert other.result(DEADLINE) == [False, True]


@pytest.mark.endurance
def test_resumed_it_takes_the_steps_of_an_undisturbed_run(start):
    """Weights, the optimizer's moments, the rate and the place in the data are as they were. Of one
    trainer: test_parameter_server.py."""
    changes = {"strategy.mode": "sync", "trainer.checkpoint_every": 6, "trainer.max_steps": 9}
    whole = start(changes, servers=1)
    ended(whole)
    assert steps_of(whole.output) == [6, 9]
    expected = tiny_job.losses(whole.output)
    # As if it had been killed after step 6.
    for path in whole.output.glob("checkpoints/step-00000009/*"):
        path.unlink()
    again = start(changes, output=whole.output, servers=1)
    assert "passed over a broken checkpoint" in ended(again)
    assert json.loads((whole.output / "summary.json").read_text())["resumed_at"] == 6
    assert tiny_job.losses(whole.output) == pytest.approx(expected, abs=1e-4)


def told(endpoint: str) -> dict[str, float]:
    """A server's figures."""
    figures = Servers([endpoint]).since_start()
    return figures[0] if figures else {}  # it did not answer in time


def test_a_killed_server_ends_the_trainers(start):
    process = start({"trainer.epochs": 200})
    wait_for_loss(process, process.output, 3)
    # While it lives a server tells how long it takes, after a second or two.
    wait_for(lambda: {"latency_ms", "latency_99_ms"} <= set(told(process.addresses[0])), process)
    trainers = members(process, "TRAINER")
    # Paddle's launcher would end them itself: not while it is stopped.
    servers.pause(process)
    members(process, "PSERVER")[1].kill()
    until = time.monotonic() + DEADLINE
    while any(servers.lives(each) for each in trainers):
        assert time.monotonic() < until, said(process)
        time.sleep(0.05)
    text = said(process)
    address = re.escape(process.addresses[1])
    assert len(re.findall(rf"not connected: server 1 \({address}\) has gone: it was", text)) == 2
    servers.go_on(process)
    assert process.wait(timeout=DEADLINE) != 0
    wait_for_end(process)


def wait_for_end(process):
    until = time.monotonic() + DEADLINE
    while members(process):
        assert time.monotonic() < until, said(process)
        time.sleep(0.05)


class TestRefused:
    def job(self, tiny_data, tmp_path, changes):
        values = tiny_job.values(tiny_data, tmp_path, {**JOB, **changes})
        return config.Config.model_validate(values)

    @pytest.fixture
    def launched(self, monkeypatch, tmp_path):
        monkeypatch.setenv("PADDLE_PSERVERS_IP_PORT_LIST", "127.0.0.1:1")
        monkeypatch.setenv("PADDLE_TRAINER_ENDPOINTS", "127.0.0.1:2")
        monkeypatch.setenv("TRAINING_ROLE", "TRAINER")
        monkeypatch.setattr(environment, "die_with_parent", lambda parent: None)

    def test_without_servers(self, tiny_data, tmp_path):
        with pytest.raises(UserError, match="parameter_server needs servers and trainers; start"):
            training.run(self.job(tiny_data, tmp_path, {}))

    def test_another_strategy_with_servers(self, tiny_data, tmp_path, launched):
        with pytest.raises(UserError, match=r"strategy\.name: auto cannot run on servers"):
            training.run(self.job(tiny_data, tmp_path, {"strategy.name": "auto"}))

    @pytest.mark.parametrize(
        ("changes", "part"),
        [
            ({"precision.level": "O1"}, "precision.level: O1 does not go together with"),
            ({"trainer.device": "gpu"}, "trainer.device: parameter_server runs on CPUs only"),
        ],
    )
    def test_what_it_cannot_do(self, tiny_data, tmp_path, launched, changes, part):
        with pytest.raises(UserError, match=part):
            training.run(self.job(tiny_data, tmp_path, changes))

    def test_another_kind_of_job(self, tiny_data, tmp_path, launched):
        values = tiny_job.values(tiny_data, tmp_path, JOB)
        values["model"] = {"init": "teacher"}
        values["distill"] = {"teacher": "model"}
        with pytest.raises(UserError, match="parameter_server is for training only"):
            connect(config.Distill.model_validate(values))

    @pytest.fixture
    def serving(self, launched, monkeypatch):
        monkeypatch.setenv("TRAINING_ROLE", "PSERVER")

        def at(port: int) -> None:
            monkeypatch.setenv("PADDLE_PSERVERS_IP_PORT_LIST", f"127.0.0.1:{port}")
            monkeypatch.setenv("PADDLE_PORT", str(port))

        return at

    def test_a_port_in_use(self, tiny_data, tmp_path, serving):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            serving(port)
            with pytest.raises(UserError, match=f"server 127.0.0.1:{port} cannot listen there: A"):
                training.run(self.job(tiny_data, tmp_path, {}))

    def test_a_server_of_another_config(self, tiny_data, tmp_path, serving, monkeypatch):
        monkeypatch.setenv("FLEETBERT_RUN", str(tmp_path / "run"))
        serving(int(servers.free_addresses(1)[0].rpartition(":")[2]))
        theirs = self.job(tiny_data, tmp_path, {"optimizer.learning_rate": 0.1})
        (tmp_path / "run").mkdir()
        rendezvous.put(tmp_path / "run" / "tables", {"job": theirs.model_dump_json()})
        expected = "server 0: was started with optimizer.learning_rate: 0.002, trainer 0 with 0.1"
        with pytest.raises(UserError, match=expected):
            training.run(self.job(tiny_data, tmp_path, {}))

    def test_a_trainer_of_another_config(self, tiny_data, tmp_path):
        jobs = [self.job(tiny_data, tmp_path, {"output_dir": name}) for name in ("here", "there")]
        place = SimpleNamespace(name="trainer 1")
        rendezvous.check_same_job(jobs[0], jobs[0].model_dump_json(), place)
        expected = "trainer 1: was started with output_dir: here, trainer 0 with there; start all"
        with pytest.raises(UserError, match=expected):
            rendezvous.check_same_job(jobs[0], jobs[1].model_dump_json(), place)

    def test_a_server_that_is_not_listed(self, tiny_data, tmp_path, serving, monkeypatch):
        serving(1234)
        monkeypatch.setenv("PADDLE_PORT", "4321")
        with pytest.raises(
            UserError, match=r"--servers: none of 127\.0\.0\.1:1234 has the port 4321"
        ):
            training.run(self.job(tiny_data, tmp_path, {}))

    def test_too_few_servers_for_the_weights(self, tiny_data, tmp_path, launched, monkeypatch):
        monkeypatch.setenv("FLEETBERT_RUN", str(tmp_path / "run"))
        monkeypatch.setattr(parameter_server, "LARGEST_MESSAGE", 100_000)
        with pytest.raises(
            UserError, match=r"--servers: 1 are too few for .* weights, .*; start 5"
        ):
            training.run(self.job(tiny_data, tmp_path, {}))

    def test_several_machines_without_a_folder(self, tiny_data, tmp_path, launched, monkeypatch):
        monkeypatch.setenv("PADDLE_PSERVERS_IP_PORT_LIST", "10.0.0.1:1,10.0.0.2:1")
        monkeypatch.delenv("FLEETBERT_RUN", raising=False)
        with pytest.raises(UserError, match="FLEETBERT_RUN: servers and trainers on several"):
            connect(self.job(tiny_data, tmp_path, {}))
