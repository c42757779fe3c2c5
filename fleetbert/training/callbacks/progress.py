"""A progress bar: loss, learning rate, ips, reader ratio, time left; how long it will take."""

from __future__ import annotations

import sys
import time

from tqdm.auto import tqdm

from fleetbert.core import progress
from fleetbert.core.quantities import duration
from fleetbert.tasks import FIGURES
from fleetbert.training.loop import Callback, Metrics, Row, Run

TIMED = 5  # steps after which it says how long all will take; the first is slower than the others
LONG = 10.0  # seconds: no line says that less is left


class Progress(Callback):
    bar: tqdm
    started = False
    since = 0.0  # when the first step ended

    def on_start(self, run: Run) -> None:
        # paddle.distributed.launch shows rank 0's log file.
        watched = progress.watched()
        self.started = True
        self.bar = progress.bar(
            total=run.total_steps,
            initial=run.state.step,
            unit=" steps",
            dynamic_ncols=watched,
            ncols=None if watched else 110,
        )
        if run.state.step:
            self.bar.write(f"resumed at step {run.state.step}", file=sys.stderr)

    def on_step(self, run: Run) -> None:
        self.bar.update()
        done = run.state.step - run.resumed_at
        if done == 1:
            self.since = time.monotonic()
        elif done == TIMED:
            seconds = (time.monotonic() - self.since) / (TIMED - 1)
            left = run.total_steps - run.state.step
            if left * seconds >= LONG:
                about = f"take about {duration(left * seconds)} here"
                self.bar.write(f"{left} more steps of {seconds:.2g} s {about}", file=sys.stderr)

    def on_log(self, run: Run, row: Row) -> None:
        shown = {
            "loss": f"{row['loss']:.4f}",
            "lr": f"{row['lr']:.1e}",
            "ips": f"{row['ips']:.0f} texts/s",
            "reader": f"{100 * row['reader_ratio']:.1f} %",
        }
        if "servers.pulls_per_s" in row:
            shown["servers"] = (
                f"{row['servers.pulls_per_s']:.0f} pulls/s, "
                f"{row['servers.pushes_per_s']:.0f} pushes/s, {row['servers.memory_mb']:.0f} MB"
            )
        if row["skipped"]:
            shown["skipped"] = str(row["skipped"])
        if row["bad_steps"]:
            shown["bad"] = str(row["bad_steps"])
        self.bar.set_postfix(shown, refresh=False)

    def on_evaluation(self, run: Run, metrics: Metrics) -> None:
        numbers = "  ".join(
            f"{name} {metrics[name]:.4f}" for name in (*FIGURES, "loss") if name in metrics
        )
        best = "  (best so far)" if run.state.best.get("step") == run.state.step else ""
        self.bar.write(f"step {run.state.step}: dev {numbers}{best}", file=sys.stderr)

    def close(self, run: Run) -> None:
        if self.started:
            self.bar.close()
