"""Clicks: how rows become targets, and a step's rows arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Sequence

import numpy as np

from fleetbert import config as schema
from fleetbert.core.errors import UserError
from fleetbert.data import batching, fields, read
from fleetbert.tasks.collect import Arrays, Labelled
from fleetbert.tasks.labels import Labels


class Collector(Labelled):
    """Its arrays: `inputs`, `ids` int64 [rows, categories], `labels`, `weight`, `texts`, which rows
    they are; `n_texts`, `n_tokens`."""

    def plan(self, epoch: int) -> batching.Plan:
        return batching.plan_epoch(
            np.ones(len(self.split.labels), np.int8),
            batching="pad",
            batch_size=self.job.data.batch_size,
            batch_tokens=None,
            max_length=1,
            seed=self.job.trainer.seed,
            epoch=epoch,
        )

    def micro_batches(
        self, indices: np.ndarray, epoch: int, parts: int, shard: slice
    ) -> list[Arrays]:
        """A part left over repeats a row with weight 0, because every rank takes part in a step."""
        shares = []
        for part in np.array_split(indices, parts)[shard]:
            weight = np.full(max(1, len(part)), (len(part) > 0) / len(indices), np.float32)
            shares.append(self.of_rows(part if len(part) else indices[:1], weight))
        return shares

    def whole(self, part: np.ndarray) -> Arrays:
        return self.of_rows(part, np.ones(len(part), np.float32))

    def of_rows(self, part: np.ndarray, weight: np.ndarray) -> Arrays:
        rows = self.split.encodings.ids
        numbers, ids = fields.unpack(np.stack([rows[number] for number in part.tolist()]))
        return {
            "inputs": {"numbers": fields.features(numbers)},
            "ids": ids,
            "labels": self.split.labels[part],
            "weight": weight,
            "texts": part,
            "n_texts": int(np.count_nonzero(weight)),
            "n_tokens": 0,
        }


class Clicked(Labels):
    """0 or 1."""

    collects = Collector

    def table_format(
        self,
        path: str | Path,
        columns: schema.Columns = read.USUAL,
        labelled: bool | None = None,
    ) -> read.Format:
        return read.Format("fields", None, False, labelled is not False)

    def input_format(self, path: str | Path, columns: schema.Columns) -> read.Format:
        return self.table_format(path, columns, labelled=False)

    def labels_of(self, written: Sequence[str]) -> list[str]:
        return []

    def targets(self, written: Sequence[str], labels: Sequence[str]) -> np.ndarray:
        """float32 [written]."""
        return np.array([float(label) for label in written], np.float32)

    def check_targets(self, name: str, targets: np.ndarray) -> None:
        if len(np.unique(targets)) < 2:
            raise UserError(
                f"{name}: all rows have the label {targets[0]:.0f}; without both a 0 and a 1 there "
                "is no AUC"
            )
