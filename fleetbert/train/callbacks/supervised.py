"""Tells the rank's supervisor each step, so that it can say where a rank was killed or hangs."""

from __future__ import annotations

from fleetbert.launch import heartbeat
from fleetbert.train.loop import Callback, Run


class Supervised(Callback):
    def on_start(self, run: Run) -> None:
        self.first = run.state.step
        heartbeat.note_step(self.first, 0)

    def on_step(self, run: Run) -> None:
        heartbeat.note_step(run.state.step, run.state.step - self.first)
