"""Training on rows that are no texts, whose categories have rows of a sparse table."""

from __future__ import annotations

import hashlib
import importlib
import shutil
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Iterator, Sequence

import numpy as np
import paddle
from paddle import nn

from fleetbert import bundle as bundles
from fleetbert import config as schema
from fleetbert import tasks
from fleetbert.core import files
from fleetbert.core.errors import UserError
from fleetbert.data import fields, tokenizers
from fleetbert.data.cache import Ids
from fleetbert.data.read import lines_at
from fleetbert.data.split import Split
from fleetbert.data.tokenizers.fields import SPEC, write
from fleetbert.export.rows import export_rows
from fleetbert.tasks import Arrays, Criterion, Metrics, Part
from fleetbert.tasks.evaluator import together
from fleetbert.tasks.task import Task
from fleetbert.training import checkpoint
from fleetbert.training.loop import Run
from fleetbert.training.sparse_table import FILE, SparseTable
from fleetbert.training.strategies.single import Single, Tensors
from fleetbert.training.texts import open_splits
from fleetbert.training.trainable import Described, Trainable

BLOCK = 8192  # rows
MOST_WAITING = 1 << 22  # ids


class RowTraining(Trainable):
    """Strategies have the rows of its table taken before a step, learned after it, and pushed."""

    def __init__(self, task: Task, job: schema.Config, train: Split, dev: Split | None):
        self.task, self.job, self.train, self.dev = task, job, train, dev
        self.float32 = f"task.name: {task.shape.name}"
        tokenizer = tokenizers.open(SPEC)
        self.collector = task.labels.collector(train, job, tokenizer)
        self.dev_collector = dev and task.labels.collector(dev, job, tokenizer)
        paddle.seed(job.trainer.seed)
        assert isinstance(task.loss, str)
        self.module = importlib.import_module(task.loss)
        self.network = self.module.build(job)
        self.table: SparseTable = SparseTable(job, ids_of(train))

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.train)

    @cached_property
    def origins(self) -> dict[str, str]:
        return {} if self.dev is None else {"data.dev": fingerprint(self.dev)}

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
        assert self.dev_collector is not None
        return self.tensors(self.dev_collector.whole(part))

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
    task = tasks.get(job.task.name)
    splits = open_splits(job, tokenizers.open(SPEC), connected)
    train, *dev = (task.labels.with_targets(split, written, []) for split, written in splits)
    return RowTraining(task, job, train, dev[0] if dev else None)


def blocks(split: Split) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Numbers and ids of its rows, some at a time."""
    rows = split.encodings.ids
    starts = range(0, len(rows), BLOCK)
    some = (np.stack(rows[start : start + BLOCK]) for start in starts)
    for block in rows.pieces if isinstance(rows, Ids) else some:
        yield fields.unpack(block.reshape(-1, fields.WORDS))


def ids_of(split: Split) -> np.ndarray:
    """int64, ascending: the ids of its rows, each once."""
    parts, waiting = [np.empty(0, np.int64)], 0
    for _, ids in blocks(split):
        parts.append(np.unique(ids))
        waiting += len(parts[-1])
        if waiting > max(MOST_WAITING, len(parts[0])):
            parts, waiting = [np.unique(np.concatenate(parts))], 0
    return np.unique(np.concatenate(parts))


def fingerprint(split: Split) -> str:
    """Of labels, numbers and ids, as former versions have it in checkpoints."""
    digest = hashlib.sha256(np.ascontiguousarray(split.labels, np.float32).data)
    for which in (0, 1):
        for block in blocks(split):
            digest.update(np.ascontiguousarray(block[which]).data)
    return digest.hexdigest()


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
            tokenizer=write(Path(scratch)),
            accuracy=accuracy,
        )
