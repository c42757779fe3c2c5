"""Paddle's profiler around the loop: reader_cost, batch_cost, ips, and on request timelines.

The clocks are `paddle.profiler`'s own. Its summary leaves the first ten steps out, and so do the
figures here. profile.json holds each rank's figures and those of all together, and what parameter
servers tell of themselves.
"""

from __future__ import annotations

import contextlib
import io
import logging

from paddle import profiler

from fleetbert.compat import training
from fleetbert.core import files
from fleetbert.training.loop import Callback, Row, Run, Summary

log = logging.getLogger(__name__)

TOO_SHORT = "the run was too short: Paddle's profiler leaves out its first ten steps"


class Profiler(Callback):
    running = False

    def on_start(self, run: Run) -> None:
        self.texts = self.tokens = 0
        self.slow: list[Row] = []
        self.traces: list[str] = []
        settings = run.job.callbacks.profiler
        pause = settings.wait_steps + settings.warmup_steps
        self.profiler = profiler.Profiler(
            targets=training.profiled(),
            scheduler=profiler.make_scheduler(
                closed=settings.wait_steps,
                ready=settings.warmup_steps,
                record=settings.record_steps,
                repeat=settings.repeat,
                skip_first=settings.start_step - pause,
            ),
            timer_only=settings.timer_only,
            profile_memory=settings.memory,
            # By default Paddle makes a folder profiler_log/ for timelines in the current one.
            on_trace_ready=lambda p: self._keep_timeline(run, p),
        )
        self.profiler.start()
        self.running = True

    def before_reading(self, run: Run) -> None:
        training.before_reading()
        self.reading = profiler.RecordEvent("reader")  # in a timeline
        self.reading.begin()

    def after_reading(self, run: Run) -> None:
        self.reading.end()
        training.after_reading()

    def on_step(self, run: Run) -> None:
        self.profiler.step(num_samples=run.step_texts)
        self.texts += run.step_texts
        self.tokens += run.step_tokens

    def on_end(self, run: Run, summary: Summary) -> None:
        figures = training.timer_summary()
        table = self._stop()
        first = run.strategy.rank == 0
        row: Row = {"rank": run.strategy.rank}
        if figures:  # there are none of a run of under eleven steps; seconds, and units a second
            reader, batch, ips = (
                figures[f"{name}_summary"]["avg"] for name in ("reader", "batch", "ips")
            )
            row.update(_speeds(reader, batch, ips, ips * self.tokens / max(self.texts, 1)))
            row["steps"] = {
                name: {
                    word: figures[f"{key}_summary"][short]
                    for word, short in (("average", "avg"), ("maximum", "max"), ("minimum", "min"))
                }
                for name, key in (
                    ("reader_cost", "reader"),
                    ("batch_cost", "batch"),
                    ("ips", "ips"),
                )
            }
            if first:
                log.info(table)
        elif first:
            log.info(f"profile.json: {TOO_SHORT}")
        ranks = run.strategy.gather(row)
        profile: Row = {"ranks": ranks, "together": together(ranks), "slow_operators": self.slow}
        if self.traces:
            profile["traces"] = self.traces
        if "servers" in summary:
            profile["servers"] = summary["servers"]
        if not figures:
            profile["note"] = TOO_SHORT
        summary["profile"] = profile["together"]
        if first:
            files.write_json(run.folder / "profile.json", profile)

    def close(self, run: Run) -> None:
        self._stop()

    def _stop(self) -> str:
        """Stop Paddle's profiler, if it runs; returns the table that it prints then."""
        if self.running:
            self.running = False
            with contextlib.redirect_stdout(io.StringIO()) as summary:  # Paddle prints it
                self.profiler.stop()
            del self.profiler  # Paddle makes no second one while this lives
            return summary.getvalue().strip()
        return ""

    def _keep_timeline(self, run: Run, recorded: profiler.Profiler) -> None:
        step, rank = run.state.step, run.strategy.rank
        # VisualDL reads files of this name: the worker, and when it was recorded.
        trace = f"profile/rank-{rank}_time_step-{step}.paddle_trace.json"
        path = run.folder / trace
        views = run.job.callbacks.profiler.views
        with files.writing(path):
            path.parent.mkdir(exist_ok=True)
            recorded.export(str(path), "json")
            if views:
                with contextlib.redirect_stdout(io.StringIO()) as tables:
                    recorded.summary(views=[profiler.SummaryView[view] for view in views])
                table = path.with_name(f"rank-{rank}_step-{step}.txt")
                table.write_text(tables.getvalue(), encoding="utf-8")
        self.traces.append(trace)
        self.slow = training.slow_operators(recorded)


def _speeds(reader: float, batch: float, texts_per_s: float, tokens_per_s: float) -> Row:
    return {
        "reader_cost": reader,
        "batch_cost": batch,
        "reader_ratio": reader / batch,
        "steps_per_s": 1 / batch,
        "ips": texts_per_s,
        "ips_unit": "texts/s",
        "texts_per_s": texts_per_s,
        "tokens_per_s": tokens_per_s,
    }


def together(ranks: list[Row]) -> Row:
    """Combine the ranks: a step takes as long as its slowest rank, which is named, and texts/s add
    up."""
    known = [rank for rank in ranks if "batch_cost" in rank]
    if not known:
        return {}
    reader, batch = (max(rank[name] for rank in known) for name in ("reader_cost", "batch_cost"))
    texts, tokens = (sum(rank[f"{name}_per_s"] for rank in known) for name in ("texts", "tokens"))
    slowest = max(known, key=lambda rank: rank["batch_cost"])
    return {**_speeds(reader, batch, texts, tokens), "slowest_rank": slowest["rank"]}
