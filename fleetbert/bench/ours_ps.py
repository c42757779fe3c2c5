"""A server or trainer of `bench ps`: the real training loop, in segments.

`python -m fleetbert.bench.ours_ps job.json`, with the variables that `fleetbert launch` would set.
A server says hello and serves until it is killed; a trainer goes on when told to.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from fleetbert import config as schema
from fleetbert.bench import worker
from fleetbert.bench.ours_train import Pacer
from fleetbert.errors import UserError
from fleetbert.train.callbacks import build
from fleetbert.train.loop import Run, versions
from fleetbert.train.strategies import connect
from fleetbert.train.strategies.parameter_server import server
from fleetbert.train.texts import open_task


class Counting:
    """`tables` (`private.Fleet`), and how many bytes of numbers and ids go through it.

    `bytes`: by kind (dense or rows, pushed or pulled), what the calls carry, counters and pulls
    that came too early among it; `words` are the rows of words that were pulled and pushed.
    """

    def __init__(self, tables: Any, words: int):
        self._tables, self._words = tables, words
        self.bytes: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tables, name)

    def pull_dense(self) -> np.ndarray:
        vector = self._tables.pull_dense()
        self.bytes["dense_pulled"] += vector.nbytes
        return vector

    def push_dense(self, gradient: np.ndarray) -> None:
        self.bytes["dense_pushed"] += gradient.nbytes
        self._tables.push_dense(gradient)

    def pull_rows(self, ids: np.ndarray) -> np.ndarray:
        rows = self._tables.pull_rows(ids)
        self._count_rows("pulled", ids, rows)
        return rows

    def push_rows(self, ids: np.ndarray, gradient: np.ndarray) -> None:
        self._count_rows("pushed", ids, gradient)
        self._tables.push_rows(ids, gradient)

    def _count_rows(self, way: str, ids: np.ndarray, rows: np.ndarray) -> None:
        self.bytes[f"rows_{way}"] += ids.nbytes + rows.nbytes
        self.bytes["words"] += int((ids < self._words).sum())


class CountingPacer(Pacer):
    """A pacer that also reports the bytes of the timed steps."""

    def __init__(self, segments: worker.Segments, counting: Counting):
        super().__init__(segments)
        self.counting = counting

    def before_reading(self, run: Any) -> None:
        super().before_reading(run)
        assert self.segments.report is not None
        if self.segments.report["steps"] == 0:
            self.before = Counter(self.counting.bytes)

    def on_step(self, run: Any) -> None:
        super().on_step(run)
        assert self.segments.report is not None
        self.segments.report["bytes"] = {
            name: count - self.before[name] for name, count in self.counting.bytes.items()
        }


def main() -> None:
    channel = worker.Channel()
    wanted = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        job = schema.load(wanted["config"], wanted["overrides"])
        channel.send(versions=versions())
        if server.is_server():
            server.serve(job)
            return
        channel.receive()
        strategy: Any = connect(job)
        strategy.on_first(lambda: Path(job.output_dir).mkdir(parents=True, exist_ok=True))
        task = open_task(job)
        run = Run(job, strategy, task)
        run.callbacks = build(run)
        weights = strategy.mirror.weights
        counting = Counting(strategy.tables.tables, weights.rows)
        strategy.tables.tables = counting
        segments = worker.Segments(channel)
        run.callbacks.insert(0, CountingPacer(segments, counting))
        channel.send(
            dense=weights.dense,
            rows=weights.rows,
            width=weights.width,
            settings={name: getattr(job.strategy, name) for name in ("pull_every", "k_steps")},
            texts=len(task.train.labels),
            mean_tokens=float(task.train.encodings.lengths.mean()),
        )
        run.train()
    except UserError as error:
        channel.send(error=str(error))
    except worker.Stop:
        pass


if __name__ == "__main__":
    main()
