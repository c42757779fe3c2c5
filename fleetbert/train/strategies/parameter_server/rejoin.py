"""A trainer that was killed and is started again alone: where it stood, and going on from there.

It takes the weights from the servers, its optimizer from the newest checkpoint, and does the step
again in which it was killed. What it had pushed of it stays pushed: the counters tell.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from fleetbert.errors import NotConnected
from fleetbert.train.callbacks import Callback
from fleetbert.train.strategies.parameter_server import meeting as meetings


class Standing(NamedTuple):
    """Where a trainer was after its last whole step."""

    state: dict[str, Any]  # `train.loop.State`
    schedule: dict[str, Any]  # of the learning rate
    meetings: int
    begun: int  # steps of this start of the job
    dense: list[int]  # every trainer's pushes that it knew of, see `Counted`
    rows: list[int]


class Remember(Callback):
    """Notes the standing after each step, after all other callbacks."""

    def on_step(self, run: Any) -> None:
        strategy = run.strategy
        standing = Standing(
            asdict(run.state),
            strategy.schedule.state_dict(),
            strategy.meeting.count,
            strategy.meeting.steps,
            strategy.tables.dense.tolist(),
            strategy.tables.rows.tolist(),
        )
        meetings.put(_file(strategy.meeting), standing)


def find(meeting: meetings.Meeting) -> Standing:
    """Where the killed trainer stood. NotConnected where the others cannot be joined: they have
    seen it in a meeting whose part they no longer keep."""
    entered = [path.name for path in meeting.folder.glob(f"meeting-*.{meeting.rank}")]
    last = max((int(Path(name).stem.split("-")[1]) for name in entered), default=0)
    if _file(meeting).exists():
        standing: Standing = meetings.get(_file(meeting))
        if last <= standing.meetings + 1:
            return standing
    raise NotConnected(
        f"trainer {meeting.rank}: was killed while the others waited for it, and cannot go on "
        "alone; the whole job has to start again, and goes on from its newest checkpoint"
    )


def _file(meeting: meetings.Meeting) -> Path:
    return meeting.folder / f"standing.{meeting.rank}"
