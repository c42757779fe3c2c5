"""Clicks from categories without a vocabulary: wide and deep over a table of rows."""

from __future__ import annotations

import shutil
from functools import cached_property
from typing import Sequence

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn

from fleetbert import config as schema
from fleetbert.core import files
from fleetbert.core.errors import UserError
from fleetbert.data import criteo
from fleetbert.data.read import lines_at
from fleetbert.models.wide_deep import WideDeep
from fleetbert.tasks import Arrays, Criterion, Metrics, Part
from fleetbert.tasks.ctr import labels as clicks
from fleetbert.tasks.ctr import metrics as click_metrics
from fleetbert.training import checkpoint
from fleetbert.training.loop import Run
from fleetbert.training.sparse_table import FILE, SparseTable
from fleetbert.training.strategies.single import Single, Tensors
from fleetbert.training.trainable import Described, Trainable


class Ctr(Trainable):
    """Strategies have the rows of its table taken before a step, learned after it, and pushed."""

    float32 = "task.name: ctr"

    def __init__(self, job: schema.Config, train: criteo.Clicks, dev: criteo.Clicks | None):
        self.job, self.train, self.dev = job, train, dev
        self.collector = clicks.Collector(train, job)
        paddle.seed(job.trainer.seed)
        shape = job.wide_deep
        self.network = WideDeep(
            2 * criteo.NUMBERS, criteo.CATEGORIES, shape.embedding_size, shape.deep_layers
        )
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
        logits = model(**arrays["inputs"])
        losses = F.binary_cross_entropy_with_logits(logits, arrays["labels"], reduction="none")
        return (losses * arrays["weight"]).sum()

    def dev_batches(self) -> list[np.ndarray]:
        if self.dev is None:
            return []
        size = max(1, self.job.data.batch_size or 1)
        return np.array_split(np.arange(len(self.dev.labels)), -(-len(self.dev.labels) // size))

    def dev_arrays(self, part: np.ndarray) -> Arrays:
        assert self.dev is not None
        ones = np.ones(len(part), np.float32)
        return self.tensors(clicks.Collector(self.dev, self.job).arrays(part, ones))

    def predict(self, network: nn.Layer, arrays: Arrays) -> Part:
        return {"rows": arrays["texts"], "logits": network(**arrays["inputs"]).numpy()}

    def evaluate(self, parts: Sequence[Part]) -> Metrics:
        assert self.dev is not None
        logits = np.zeros(len(self.dev.labels), np.float32)
        for part in parts:
            logits[part["rows"]] = part["logits"]
        return click_metrics.evaluate(self.dev.labels, logits)

    def criterion(self, metrics: Metrics) -> Criterion:
        return Criterion("auc", False)

    def locate(self, indices: Sequence[int]) -> list[Described]:
        numbers = [int(self.train.lines[index]) for index in indices]
        texts = lines_at(self.train.name, numbers)
        return [{"file": self.train.name, "line": n, "text": texts.get(n)} for n in numbers]


def open_ctr(job: schema.Config, connected: Single | None = None) -> Ctr:
    """Read the rows, build the network. UserError where a strategy has no place for the table."""
    ranks = 1 if connected is None else connected.world_size
    if ranks > 1 and job.strategy.name != "parameter_server":
        raise UserError(
            "task.name: ctr trains in one process, or on servers (strategy.name: parameter_server);"
            f" not in {ranks} ranks that each have a table"
        )
    data = job.data
    splits = [criteo.read(path, data.on_bad_line) for path in (data.train, data.dev) if path]
    dev = splits[1] if len(splits) > 1 else None
    if dev is not None and len(np.unique(dev.labels)) < 2:
        raise UserError(
            f"data.dev: all rows of {dev.name} have the label {dev.labels[0]:.0f}; without both a "
            "0 and a 1 there is no AUC"
        )
    return Ctr(job, splits[0], dev)


def write_model(run: Run, tensors: Tensors) -> None:
    """`model/` in the run's folder: the network's `tensors` of the best step, as NumPy's .npz,
    and the rows of that step's checkpoint."""
    folder = run.folder
    step = (run.state.best or {}).get("step", run.state.step)
    saved = checkpoint.of_step(folder / "checkpoints", step)
    model = folder / "model"
    with files.writing(model), files.replacing_folder(model, ".model-") as new:
        np.savez(new / "network.npz", **{name: t.numpy() for name, t in tensors.items()})
        shutil.copyfile(saved / FILE, new / FILE)
