"""Training on rows that are no texts, whose categories have rows of a sparse table."""

from __future__ import annotations

import importlib
import shutil
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Sequence

import numpy as np
import paddle
from paddle import nn

from fleetbert import bundle as bundles
from fleetbert import config as schema
from fleetbert import tasks
from fleetbert.core import files
from fleetbert.core.errors import UserError
from fleetbert.data.read import lines_at
from fleetbert.data.tokenizers import fields as tokenizer
from fleetbert.export.rows import export_rows
from fleetbert.tasks import Arrays, Criterion, Metrics, Part
from fleetbert.tasks.evaluator import together
from fleetbert.tasks.task import Rows, RowTask
from fleetbert.training import checkpoint
from fleetbert.training.loop import Run
from fleetbert.training.sparse_table import FILE, SparseTable
from fleetbert.training.strategies.single import Single, Tensors
from fleetbert.training.trainable import Described, Trainable


class RowTraining(Trainable):
    """Strategies have the rows of its table taken before a step, learned after it, and pushed."""

    def __init__(self, task: RowTask, job: schema.Config, train: Rows, dev: Rows | None):
        self.task, self.job, self.train, self.dev = task, job, train, dev
        self.float32 = f"task.name: {task.shape.name}"
        self.collector = task.collector(train, job)
        paddle.seed(job.trainer.seed)
        self.module = importlib.import_module(task.loss)
        self.network = self.module.build(job)
        self.table: SparseTable = SparseTable(job, np.unique(train.ids))

    @cached_property
    def fingerprint(self) -> str:
        return self.train.fingerprint()

    @cached_property
    def origins(self) -> dict[str, str]:
        return {} if self.dev is None else {"data.dev": self.dev.fingerprint()}

    def notes(self) -> list[str]:
        notes = []
        for split in (self.train, self.dev):
            if split is not None:
                skipped = f", {split.skipped} bad lines skipped" if split.skipped else ""
                notes.append(f"{split.name}: {len(split.labels)} rows{skipped}")
        return [*notes, f"{self.train.name}: {len(self.table.ids)} ids"]

    def describe(self) -> Described:
        splits = {"train": self.train, "dev": self.dev}
        known = {role: split for role, split in splits.items() if split is not None}
        return {
            "data": {role: {"file": s.name, **s.counts()} for role, s in known.items()},
            "ids": len(self.table.ids),
        }

    def loss(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        loss: paddle.Tensor = self.module.loss(model, arrays)
        return loss

    def dev_batches(self) -> list[np.ndarray]:
        if self.dev is None:
            return []
        size = max(1, self.job.data.batch_size or 1)
        return np.array_split(np.arange(len(self.dev.labels)), -(-len(self.dev.labels) // size))

    def dev_arrays(self, part: np.ndarray) -> Arrays:
        assert self.dev is not None
        ones = np.ones(len(part), np.float32)
        return self.tensors(self.task.collector(self.dev, self.job).arrays(part, ones))

    def predict(self, network: nn.Layer, arrays: Arrays) -> Part:
        return {"texts": arrays["texts"], "logits": network(**arrays["inputs"]).numpy()[:, None]}

    def evaluate(self, parts: Sequence[Part]) -> Metrics:
        assert self.dev is not None
        logits = together(parts, self.task.room(len(self.dev.labels), []))
        return self.task.metrics.evaluate(self.dev.labels, logits, [])

    def criterion(self, metrics: Metrics) -> Criterion:
        return self.task.metrics.criterion(self.job.trainer.best_metric, metrics)

    def locate(self, indices: Sequence[int]) -> list[Described]:
        numbers = [int(self.train.lines[index]) for index in indices]
        texts = lines_at(self.train.name, numbers)
        return [{"file": self.train.name, "line": n, "text": texts.get(n)} for n in numbers]


def open_rows(job: schema.Config, connected: Single | None = None) -> RowTraining:
    """Read the rows, build the network. UserError where a strategy has no place for the table."""
    ranks = 1 if connected is None else connected.world_size
    if ranks > 1 and job.strategy.name != "parameter_server":
        raise UserError(
            f"task.name: {job.task.name} trains in one process, or on servers (strategy.name: "
            f"parameter_server); not in {ranks} ranks that each have a table"
        )
    task, data = tasks.get(job.task.name), job.data
    assert isinstance(task, RowTask)
    assert data.train is not None  # `data.builtin` is refused
    train = task.read(data.train, data.on_bad_line)
    dev = task.read(data.dev, data.on_bad_line) if data.dev else None
    if dev is not None:
        task.labels.check_targets(f"data.dev: {dev.name}", dev.labels)
    return RowTraining(task, job, train, dev)


def write_model(run: Run, tensors: Tensors) -> None:
    """`model/` and `bundle/` in the run's folder, of the network's `tensors` of the best step and
    the rows of that step's checkpoint. In `model/` tensors are NumPy's .npz."""
    folder, task = run.folder, run.task
    assert isinstance(task, RowTraining)
    step = (run.state.best or {}).get("step", run.state.step)
    saved = checkpoint.of_step(folder / "checkpoints", step)
    model = folder / "model"
    with files.writing(model), files.replacing_folder(model, ".model-") as new:
        np.savez(new / "network.npz", **{name: t.numpy() for name, t in tensors.items()})
        shutil.copyfile(saved / FILE, new / FILE)
    network = task.module.build(run.job)
    network.set_state_dict(tensors)
    accuracy, metric = [], task.task.metrics.gate_metric
    best = run.state.best or {}
    if task.dev is not None and metric in best:
        accuracy = [
            bundles.Accuracy(data=task.dev.name, n=best["n"], metric=metric, accuracy=best[metric])
        ]
    with files.writing(folder / "bundle"), tempfile.TemporaryDirectory() as scratch:
        export_rows(
            folder / "bundle",
            network,
            lambda target: task.table.export(saved / FILE, target),
            task=run.job.task.name,
            tokenizer=tokenizer.write(Path(scratch)),
            accuracy=accuracy,
        )
