"""Tells the rank's keeper each step, so that it can say where a rank was killed or hangs."""

from __future__ import annotations

from typing import Any

from fleetbert.train import keeper
from fleetbert.train.callbacks import Callback


class Life(Callback):
    def on_start(self, run: Any) -> None:
        self.first = run.state.step
        keeper.note_step(self.first, 0)

    def on_step(self, run: Any) -> None:
        keeper.note_step(run.state.step, run.state.step - self.first)
