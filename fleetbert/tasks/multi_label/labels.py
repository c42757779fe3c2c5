"""Several labels for each text, or none."""

from __future__ import annotations

import json
from typing import Sequence

import numpy as np

from fleetbert.data.labels import in_order
from fleetbert.tasks.labels import Labels


class SeveralLabels(Labels):
    def labels_of(self, written: Sequence[str]) -> list[str]:
        return in_order(name for names in written for name in json.loads(names))

    def targets(self, written: Sequence[str], labels: Sequence[str]) -> np.ndarray:
        """bool [written, labels]."""
        places = {label: number for number, label in enumerate(labels)}
        targets = np.zeros((len(written), len(labels)), bool)
        for row, names in zip(targets, written):
            row[[places[name] for name in json.loads(names) if name in places]] = True
        return targets

    def alike(self, truth: np.ndarray) -> str:
        return "all texts have the same labels" if super().alike(truth) else ""

    def counts(self, targets: np.ndarray, labels: Sequence[str]) -> np.ndarray:
        counts: np.ndarray = targets.sum(axis=0, dtype=np.int64)
        return counts

    def describe(self, targets: np.ndarray, labels: Sequence[str]) -> str:
        return f"{super().describe(targets, labels)}; {targets.sum(1).mean():.2f} a text"
