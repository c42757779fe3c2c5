"""A trainer that was killed and is started again alone: where it stood, and going on from there.

It takes the weights from the servers, its optimizer from the newest checkpoint, and does the step
again in which it was killed. What it had pushed of it stays pushed: the counters tell.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from paddle.optimizer.lr import LRScheduler

from fleetbert.errors import NotConnected
from fleetbert.train.strategies.parameter_server.arrival import Counted
from fleetbert.train.strategies.parameter_server.rendezvous import Rendezvous, get, put


class Standing(NamedTuple):
    """Where a trainer was after its last whole step."""

    state: dict[str, object]  # `train.loop.State`
    schedule: dict[str, object]  # of the learning rate
    barriers: int
    begun: int  # steps of this start of the job
    dense: list[int]  # every trainer's pushes that it knew of, see `Counted`
    rows: list[int]


def remember(
    rendezvous: Rendezvous, tables: Counted, schedule: LRScheduler, state: dict[str, object]
) -> None:
    """Note the standing after a step."""
    standing = Standing(
        state,
        schedule.state_dict(),
        rendezvous.count,
        rendezvous.steps,
        tables.dense.tolist(),
        tables.rows.tolist(),
    )
    put(_file(rendezvous), standing)


def find(rendezvous: Rendezvous) -> Standing:
    """Where the killed trainer stood. NotConnected where the others cannot be joined: they have
    seen it at a barrier whose part they no longer keep."""
    entered = [path.name for path in rendezvous.folder.glob(f"barrier-*.{rendezvous.rank}")]
    last = max((int(Path(name).stem.split("-")[1]) for name in entered), default=0)
    if _file(rendezvous).exists():
        standing: Standing = get(_file(rendezvous))
        if last <= standing.barriers + 1:
            return standing
    raise NotConnected(
        f"trainer {rendezvous.rank}: was killed while the others waited for it, and cannot go on "
        "alone; the whole job has to start again, and goes on from its newest checkpoint"
    )


def _file(rendezvous: Rendezvous) -> Path:
    return rendezvous.folder / f"standing.{rendezvous.rank}"
