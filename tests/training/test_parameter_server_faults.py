"""What servers and trainers refuse, and how trainers agree, without a job of processes."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import servers
import tiny_job
from launched import DEADLINE

from fleetbert import config
from fleetbert.compat import environment, parameter_server
from fleetbert.core.errors import NotConnected, UserError
from fleetbert.training import job as training
from fleetbert.training.strategies import connect
from fleetbert.training.strategies.parameter_server import rendezvous
from fleetbert.training.strategies.parameter_server.rendezvous import Rendezvous, put
from fleetbert.training.strategies.parameter_server.trainer import Standing, find_standing


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


class TestFind:
    """Where the killed one stood, from the files that it left."""

    @pytest.fixture
    def rendezvous(self, tmp_path):
        return Rendezvous(tmp_path, 1, 2)

    @pytest.mark.parametrize(("last", "joins"), [(4, True), (5, True), (6, False)])
    def test_only_the_next_barrier_can_be_joined(self, rendezvous, last, joins):
        standing = Standing({"step": 7}, {}, 4, 7, [7, 7], [8, 7])
        put(rendezvous.folder / "standing.1", standing)
        put(rendezvous.folder / f"barrier-{last:08d}.1", None)
        put(rendezvous.folder / "barrier-00000009.0", None)  # another's
        if joins:
            assert find_standing(rendezvous) == standing
        else:
            with pytest.raises(NotConnected, match="trainer 1: was killed while the others"):
                find_standing(rendezvous)

    def test_one_that_never_took_a_step_cannot(self, rendezvous):
        assert not rendezvous.alone
        again = Rendezvous(rendezvous.folder, 1, 2)
        assert again.alone
        with pytest.raises(NotConnected, match="the whole job has to start again"):
            find_standing(again)


TRAINER = {
    "PADDLE_PSERVERS_IP_PORT_LIST": "127.0.0.1:1", "PADDLE_TRAINER_ENDPOINTS": "127.0.0.1:2",
    "TRAINING_ROLE": "TRAINER",
}  # fmt: skip


class TestRefused:
    def job(self, tiny_data, tmp_path, changes=None):
        return tiny_job.job(tiny_data, tmp_path, {**servers.STRATEGY, **(changes or {})})

    @pytest.fixture
    def started_as(self, monkeypatch, tmp_path):
        """started_as(environ): this process is one of a job."""
        monkeypatch.setattr(environment, "die_with_parent", lambda parent: None)
        monkeypatch.setenv("FLEETBERT_RUN", str(tmp_path / "run"))

        def call(environ):
            for name, value in environ.items():
                monkeypatch.setenv(name, value)

        return call

    @staticmethod
    def serving(port: int) -> dict[str, str]:
        address = {"PADDLE_PSERVERS_IP_PORT_LIST": f"127.0.0.1:{port}", "PADDLE_PORT": str(port)}
        return {**TRAINER, **address, "TRAINING_ROLE": "PSERVER"}

    @pytest.mark.parametrize(
        ("environ", "changes", "message"),
        [
            ({}, {}, "parameter_server needs servers and trainers; start"),
            (TRAINER, {"strategy.name": "auto"}, r"strategy\.name: auto cannot run on servers"),
            (TRAINER, {"precision.level": "O1"}, "precision.level: O1 does not go together with"),
            (TRAINER, {"trainer.device": "gpu"},
             "trainer.device: parameter_server runs on CPUs only"),
            ({**TRAINER, "TRAINING_ROLE": "PSERVER", "PADDLE_PORT": "4321"}, {},
             r"--servers: none of 127\.0\.0\.1:1 has the port 4321"),
            ({**TRAINER, "PADDLE_PSERVERS_IP_PORT_LIST": "10.0.0.1:1,10.0.0.2:1",
              "FLEETBERT_RUN": ""}, {}, "FLEETBERT_RUN: servers and trainers on several"),
        ],
    )  # fmt: skip
    def test_what_cannot_be(self, tiny_data, tmp_path, started_as, environ, changes, message):
        started_as(environ)
        with pytest.raises(UserError, match=message):
            training.run(self.job(tiny_data, tmp_path, changes))

    def test_another_kind_of_job(self, tiny_data, tmp_path, started_as):
        started_as(TRAINER)
        values = tiny_job.values(tiny_data, tmp_path, servers.STRATEGY)
        values["model"] = {"init": "teacher"}
        values["distill"] = {"teacher": "model"}
        with pytest.raises(UserError, match="parameter_server is for training only"):
            connect(config.Distill.model_validate(values))

    def test_a_port_in_use(self, tiny_data, tmp_path, started_as):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            started_as(self.serving(port))
            with pytest.raises(UserError, match=f"server 127.0.0.1:{port} cannot listen there: A"):
                training.run(self.job(tiny_data, tmp_path))

    def test_a_server_of_another_config(self, tiny_data, tmp_path, started_as):
        started_as(self.serving(int(servers.free_addresses(1)[0].rpartition(":")[2])))
        theirs = self.job(tiny_data, tmp_path, {"optimizer.learning_rate": 0.1})
        (tmp_path / "run").mkdir()
        rendezvous.put(tmp_path / "run" / "tables", {"job": theirs.model_dump_json()})
        expected = "server 0: was started with optimizer.learning_rate: 0.002, trainer 0 with 0.1"
        with pytest.raises(UserError, match=expected):
            training.run(self.job(tiny_data, tmp_path))

    def test_a_trainer_of_another_config(self, tiny_data, tmp_path):
        jobs = [self.job(tiny_data, tmp_path, {"output_dir": name}) for name in ("here", "there")]
        place = SimpleNamespace(name="trainer 1")
        rendezvous.check_same_job(jobs[0], jobs[0].model_dump_json(), place)
        expected = "trainer 1: was started with output_dir: here, trainer 0 with there; start all"
        with pytest.raises(UserError, match=expected):
            rendezvous.check_same_job(jobs[0], jobs[1].model_dump_json(), place)

    def test_too_few_servers_for_the_weights(self, tiny_data, tmp_path, started_as, monkeypatch):
        started_as(TRAINER)
        monkeypatch.setattr(parameter_server, "LARGEST_MESSAGE", 100_000)
        message = r"--servers: 1 are too few for .* weights, .*; start 5"
        with pytest.raises(UserError, match=message):
            training.run(self.job(tiny_data, tmp_path))
