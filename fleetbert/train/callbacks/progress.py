"""A progress bar: loss, learning rate, ips, reader ratio, time left."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm

from fleetbert.train.callbacks import Callback


class Progress(Callback):
    def on_start(self, run: Any) -> None:
        # paddle.distributed.launch shows rank 0's log file, where each update is a line.
        interval = 0.5 if sys.stderr.isatty() else 10.0
        self.bar = tqdm(
            total=run.total_steps,
            initial=run.state.step,
            unit=" steps",
            mininterval=interval,
            maxinterval=interval,
            dynamic_ncols=sys.stderr.isatty(),
            ncols=None if sys.stderr.isatty() else 110,
            file=sys.stderr,
        )
        if run.state.step:
            self.bar.write(f"resumed at step {run.state.step}", file=sys.stderr)

    def on_step(self, run: Any) -> None:
        self.bar.update()

    def on_log(self, run: Any, row: dict[str, Any]) -> None:
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

    def on_evaluation(self, run: Any, figures: dict[str, Any]) -> None:
        numbers = "  ".join(
            f"{name} {figures[name]:.4f}"
            for name in ("accuracy", "macro_f1", "auc", "loss")
            if name in figures
        )
        best = "  (best so far)" if run.state.best.get("step") == run.state.step else ""
        self.bar.write(f"step {run.state.step}: dev {numbers}{best}", file=sys.stderr)

    def close(self, run: Any) -> None:
        if hasattr(self, "bar"):
            self.bar.close()
