"""Tells the rank's keeper each step, so that it can say where a rank was killed or hangs."""

from __future__ import annotations

from fleetbert.train import keeper
from fleetbert.train.loop import Callback, Run


class Life(Callback):
    def on_start(self, run: Run) -> None:
        self.first = run.state.step
        keeper.note_step(self.first, 0)

    def on_step(self, run: Run) -> None:
        keeper.note_step(run.state.step, run.state.step - self.first)
