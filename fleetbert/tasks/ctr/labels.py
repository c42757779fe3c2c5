"""Clicks: a step's rows as arrays."""

from __future__ import annotations

import numpy as np

from fleetbert import config as schema
from fleetbert.data import batching
from fleetbert.tasks.collect import Arrays
from fleetbert.tasks.ctr import criteo


class Collector:
    """A step's rows as arrays: `inputs`, `ids`, `labels`, `weight`, `texts`, which rows they are;
    `n_texts`, `n_tokens`."""

    def __init__(self, clicks: criteo.Clicks, job: schema.Config):
        self.clicks, self.job = clicks, job

    def plan(self, epoch: int) -> batching.Plan:
        return batching.plan_epoch(
            np.ones(len(self.clicks.labels), np.int8),
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
            shares.append(self.arrays(part if len(part) else indices[:1], weight))
        return shares

    def arrays(self, part: np.ndarray, weight: np.ndarray) -> Arrays:
        return {
            "inputs": {"numbers": criteo.features(self.clicks.numbers[part])},
            "ids": self.clicks.ids[part],
            "labels": self.clicks.labels[part],
            "weight": weight,
            "texts": part,
            "n_texts": int(np.count_nonzero(weight)),
            "n_tokens": 0,
        }
