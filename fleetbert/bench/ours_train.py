# ruff: noqa: ARG002  a callback's methods have the arguments of the interface, used or not
"""This project's side of `bench train`: the real training loop, in segments.

`python -m fleetbert.bench.ours_train job.json`. Writes what the peer begins with beside job.json:
the token ids (train.npz, dev.npz) and the initial weights, head included (initial/).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from fleetbert import config as schema
from fleetbert.bench import worker
from fleetbert.data.split import Split
from fleetbert.errors import UserError
from fleetbert.models import weights
from fleetbert.train.callbacks import Callback, build
from fleetbert.train.loop import Run, versions
from fleetbert.train.strategies import connect
from fleetbert.train.texts import TextTask, open_task


class Pacer(Callback):
    """Goes on only while a segment lasts, and times its steps: reading, computing, logging."""

    def __init__(self, segments: worker.Segments):
        self.segments = segments

    def before_reading(self, run: Any) -> None:
        self.segments.before_step()

    def on_step(self, run: Any) -> None:
        self.segments.after_step(run.step_texts, run.step_tokens)

    def on_evaluation(self, run: Any, metrics: dict[str, Any]) -> None:
        self.segments.dev.append(metrics["accuracy"])


def main() -> None:
    channel = worker.Channel()
    path = Path(sys.argv[1])
    wanted = json.loads(path.read_text(encoding="utf-8"))
    try:
        job = schema.load(wanted["config"], wanted["overrides"])
        if job.task.name == "mlm":
            raise UserError("bench train compares classification; task.name is mlm")
        strategy = connect(job)
        task = open_task(job)
        run = Run(job, strategy, task)
        run.callbacks = build(run)
        _write_start(path.parent, task, wanted["threads"])
        segments = worker.Segments(channel)
        run.callbacks.insert(0, Pacer(segments))
        run.folder.mkdir()
        channel.send(
            total_steps=run.total_steps,
            engine=f"fleetbert (Paddle {paddle.__version__})",
            versions=versions(),
            texts=len(task.train.labels),
            dev_texts=0 if task.dev is None else len(task.dev.labels),
            mean_tokens=float(task.train.encodings.lengths.mean()),
        )
        run.train()
        segments.send_report()
    except UserError as error:
        channel.send(error=str(error))
    except worker.Stop:
        pass


def _write_start(folder: Path, task: TextTask, threads: int) -> None:
    job = task.job
    weights.save_folder(task.network, task.source, folder / "initial")
    _write_texts(folder / "train.npz", task.train)
    if task.dev is not None:
        _write_texts(folder / "dev.npz", task.dev)
    peer = {
        "labels": len(task.labels),
        "pad_id": task.tokenizer.pad_id,
        "batch_size": job.data.batch_size or 32,
        "optimizer": job.optimizer.model_dump(),
        "epochs": job.trainer.epochs,
        "max_steps": job.trainer.max_steps,
        "seed": job.trainer.seed,
        "threads": threads,
    }
    (folder / "peer.json").write_text(json.dumps(peer), encoding="utf-8")


def _write_texts(path: Path, split: Split) -> None:
    np.savez(
        path,
        ids=np.concatenate(split.encodings.ids),
        lengths=split.encodings.lengths,
        first_lengths=split.encodings.first_lengths,
        labels=split.labels,
    )


if __name__ == "__main__":
    main()
