"""A trainer of a parameter-server job."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, Callable, NamedTuple, cast

import paddle
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from fleetbert import config as schema
from fleetbert.compat import environment, parameter_server
from fleetbert.core.errors import NotConnected, UserError
from fleetbert.data.hashed_ids import ALL_IDS
from fleetbert.tasks import Arrays, Part
from fleetbert.training.precision import Precision
from fleetbert.training.strategies.parameter_server import rendezvous
from fleetbert.training.strategies.parameter_server.arrival import Counted, Layout
from fleetbert.training.strategies.parameter_server.figures import Servers
from fleetbert.training.strategies.parameter_server.rendezvous import Rendezvous
from fleetbert.training.strategies.parameter_server.server import check
from fleetbert.training.strategies.parameter_server.tables import IdStore, Mirror, Weights, words_of
from fleetbert.training.strategies.parameter_server.watch import Watch
from fleetbert.training.strategies.single import Single, Step, T, Tensors
from fleetbert.training.trainable import Trainable


class Standing(NamedTuple):
    """The state of a trainer after its last whole step.

    A killed trainer that is restarted alone takes the weights from the servers, its optimizer from
    the newest checkpoint, and repeats the step in which it was killed. The counters show whether
    it had already pushed that step.
    """

    state: dict[str, object]  # `train.loop.State`
    schedule: dict[str, object]  # of the learning rate
    barriers: int
    begun: int  # steps of this start of the job
    dense: list[int]  # every trainer's pushes that it knew of, see `Counted`
    rows: list[int]

    @staticmethod
    def file(rendezvous: Rendezvous) -> Path:
        return rendezvous.folder / f"standing.{rendezvous.rank}"


def find_standing(place: Rendezvous) -> Standing:
    """Return the state of the killed trainer. NotConnected if it cannot rejoin the others, because
    they have passed a barrier with it whose files are gone."""
    entered = place.folder.glob(f"barrier-*.{place.rank}")
    last = max((int(path.stem.split("-")[1]) for path in entered), default=0)
    if Standing.file(place).exists():
        standing: Standing = rendezvous.get(Standing.file(place))
        if last <= standing.barriers + 1:
            return standing
    raise NotConnected(
        f"trainer {place.rank}: was killed while the others waited for it, and cannot go on "
        "alone; the whole job has to start again, and goes on from its newest checkpoint"
    )


class ParameterServer(Single):
    """The strategy of a trainer; see the package for the modes."""

    member = "trainer"

    def __init__(self, device: str, job: schema.Config):
        super().__init__(device)
        check(job)
        environment.die_with_parent(os.getppid())
        self.place = rendezvous.Place()
        self.job, self.settings = job, job.strategy
        self.rank, self.world_size = self.place.rank, len(self.place.trainers)
        folder = rendezvous.run_folder(job, self.place)
        self.rendezvous = Rendezvous(folder, self.rank, self.world_size)
        self.rejoins = self.rendezvous.alone
        if self.rejoins:
            self.standing = find_standing(self.rendezvous)
        self.is_pushed = False  # the step that is done again after this trainer was killed
        self.started = False  # the servers have the weights
        self.synchronized = False  # and all trainers have what the servers have
        self.steps = 0  # since the last push (geo), of this process otherwise
        self.bad_in_a_row = 0

    def prepare(
        self, task: Trainable, optimizer: Optimizer, schedule: LRScheduler, precision: Precision
    ) -> None:
        super().prepare(task, optimizer, schedule, precision)
        weights = Weights(task.network)
        rows, width, entry = weights.rows, weights.width, 0
        if self.table is not None:
            rows, width, entry = ALL_IDS, self.table.width, self.table.needed
        servers = len(self.place.servers)
        largest = parameter_server.LARGEST_MESSAGE
        if weights.dense * 4 / servers > largest:
            needed = math.ceil(weights.dense * 4 / largest)
            raise UserError(
                f"--servers: {servers} are too few for {weights.dense:,} weights, of which each "
                f"can take {largest // 4:,} (Paddle's largest message); start {needed}"
            )
        layout = Layout(weights.dense, rows, self.settings.table_shards, servers, self.world_size)
        shape = (layout.all_dense, layout.all_rows, width, layout.shards, entry)
        path = self.rendezvous.folder / "tables"
        if self.rank == 0:
            rendezvous.put(path, {"shape": shape, "job": self.job.model_dump_json()})
        rendezvous.check_same_job(self.job, self.rendezvous.wait_for(path)["job"], self.place)
        self.watch = Watch(self.place.servers)
        tables = parameter_server.Fleet(*shape)
        tables.connect()
        self.servers = Servers(self.place.servers)
        self.tables = Counted(tables, layout, self.rank, self.servers.handled)
        self.mirror = Mirror(self.tables, weights, self.table)
        if self.table is not None:
            self.table.store = IdStore(self.tables, width)

    def step(self, micro_batches: list[Arrays]) -> Step:
        self._start()
        self.synchronized = False
        self.rendezvous.steps += 1
        if self.mirror.weights.rows:
            self.mirror.pull_rows(words_of(micro_batches))
        step = super().step(micro_batches)
        self.steps += 1
        if self.settings.mode == "sync":
            return self._push_together(step)
        if self.settings.mode == "async":
            self.mirror.push(1.0)
            if self.steps % self.settings.pull_every == 0:
                self.mirror.pull_latest()
        elif self.steps >= self.settings.k_steps:
            self._push_scaled()
            self.mirror.pull_latest()
        return self._alone(step)

    def predict(self, arrays: Arrays) -> Part:
        self.rendezvous.beat()
        return super().predict(arrays)

    def push_rows(self) -> None:
        """Do nothing: the rows are pushed together with the weights."""

    def _push_scaled(self) -> None:
        self.mirror.push(1.0 / self.world_size)
        self.steps = 0

    def _push_together(self, step: Step) -> Step:
        # Before the barrier nobody pushes, and all that was pushed before has been pulled. (Only
        # a trainer that comes back may push besides, and the counters tell if this was too early.)
        handled, arrived = self.tables.handled(), False
        # The first barrier: nobody pushes before all have pulled their rows.
        bad = any(self.rendezvous.gather(step.bad))
        if bad:
            self.mirror.forget_rows()
            arrived = True
        elif self.is_pushed:
            self.mirror.forget_rows()
            standing = self.standing
            self.tables.expect_of_all((standing.dense[self.rank], standing.rows[self.rank]))
        else:
            before = self.tables.pushed
            self._push_scaled()
            self.tables.expect_of_all(before)
            arrived = self.tables.wait(handled, self.world_size)
        self.is_pushed = False
        self.mirror.pull_whole(arrived)
        return step._replace(bad=bad)

    def _alone(self, step: Step) -> Step:
        """Count a bad step as skipped, up to a limit: trainers that do not wait for each other
        cannot look for bad texts together."""
        self.bad_in_a_row = self.bad_in_a_row + 1 if step.bad else 0
        most = self.job.trainer.max_bad_steps
        if self.bad_in_a_row >= most:
            raise UserError(
                f"trainer {self.rank}: loss or gradients were not finite in {most} steps in a "
                "row, which changed nothing; lower optimizer.learning_rate; strategy.mode: sync "
                "keeps the texts of such steps in bad_steps.jsonl"
            )
        return step._replace(skipped=step.bad, bad=False)

    def _start(self) -> None:
        """Give the servers the weights, loaded or restored, before the first step."""
        if not self.started:
            self.started = True
            if self.rank == 0:
                self.mirror.start()
            self._pull_all()

    def rejoin(self) -> dict[str, Any]:
        standing, meeting = self.standing, self.rendezvous
        meeting.count, meeting.steps = standing.barriers, standing.begun
        meeting.alone = False
        self.schedule.set_state_dict(standing.schedule)
        self.is_pushed = self.tables.catch_up(standing.dense, standing.rows)
        self.started = True
        self.mirror.pull_all()
        return standing.state

    def remember(self, state: Callable[[], dict[str, object]]) -> None:
        counts = self.rendezvous.count, self.rendezvous.steps
        pushed = self.tables.dense.tolist(), self.tables.rows.tolist()
        standing = Standing(state(), self.schedule.state_dict(), *counts, *pushed)
        rendezvous.put(Standing.file(self.rendezvous), standing)

    def figures(self) -> dict[str, float]:
        return {} if self.rank else self.servers.row(self.tables.count_rows)

    def summary(self) -> dict[str, Any]:
        return {} if self.rank else {"servers": self.servers.since_start()}

    def synchronize(self, saving: bool = False) -> None:
        self._start()
        if not self.synchronized:
            if self.settings.mode == "geo" and self.steps:
                self._push_scaled()
            self.mirror.forget_rows()
            self._pull_all()
        if saving:
            if self.rank:
                paddle.save(super().state()["optimizer"], str(self._optimizer_file(self.rank)))
            self.rendezvous.barrier()

    def _optimizer_file(self, rank: int) -> Path:
        return self.rendezvous.folder / f"optimizer.{rank}"

    def state(self) -> Tensors:
        """Return the state on trainer 0, after `synchronize(saving=True)`. The other trainers'
        optimizers are below `optimizer.trainers`."""
        state = super().state()
        others = {str(r): self._optimizer_file(r) for r in range(1, self.world_size)}
        saved = {rank: paddle.load(str(path)) for rank, path in others.items() if path.exists()}
        return {**state, "optimizer": {**state["optimizer"], "trainers": saved}}

    def set_state(self, state: Tensors) -> None:
        """Restore the state. A trainer new to the run takes the optimizer of trainer 0."""
        optimizer = state["optimizer"].get("trainers", {}).get(str(self.rank), state["optimizer"])
        super().set_state({**state, "optimizer": optimizer})

    def _pull_all(self) -> None:
        self.tables.expect(self.rendezvous.gather(self.tables.pushed))
        self.mirror.pull_all()
        self.rendezvous.barrier()  # before anyone pushes again
        self.synchronized = True

    def share_loss(self, part: float) -> float:
        if self.settings.mode == "sync":
            return super().share_loss(part)
        latest = self.rendezvous.latest("loss", part)
        return sum(latest) / len(latest) * self.world_size

    def gather(self, value: T) -> list[T]:
        return self.rendezvous.gather(value)

    def from_first(self, make: Callable[[], T]) -> T:
        makes = self.rank == 0 or self.rendezvous.alone
        return cast(T, self.rendezvous.gather(make() if makes else None)[0])

    def any(self, flag: bool) -> bool:
        return self.rendezvous.stops(flag)

    def any_asked_to_stop(self, is_asked: bool) -> bool:
        return self.rendezvous.is_stopping(is_asked)

    def first_failed(self, failed: bool) -> bool:
        return self.rendezvous.gather(failed)[0]

    def barrier(self) -> None:
        self.rendezvous.barrier()

    def close(self) -> None:
        """End the servers when all trainers are done."""
        self.watch.end()
        self.rendezvous.barrier()
        if self.rank == 0:
            self.tables.tables.stop_servers()
        self.rendezvous.leave()
