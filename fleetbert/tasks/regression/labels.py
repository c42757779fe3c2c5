"""A number for each text, or for each pair of texts."""

from __future__ import annotations

from typing import Sequence

import numpy as np

from fleetbert.tasks.labels import Labels


class Numbers(Labels):
    """What learns from numbers: no labels."""

    def labels_of(self, written: Sequence[str]) -> list[str]:
        return []

    def targets(self, written: Sequence[str], labels: Sequence[str]) -> np.ndarray:
        """float32 [written]."""
        return np.array([float(number) for number in written], np.float32)

    def alike(self, truth: np.ndarray) -> str:
        return "all texts have the same number" if super().alike(truth) else ""

    def describe(self, targets: np.ndarray, labels: Sequence[str]) -> str | None:
        low, high, mean = (float(of(targets)) for of in (np.min, np.max, np.mean))
        return f"numbers from {low:g} to {high:g}, {mean:.4g} on average"

    def doubts(self, targets: np.ndarray, labels: Sequence[str]) -> list[str]:
        if len(targets) < 2 or targets.min() < targets.max():
            return []
        return [f"all texts have the number {float(targets[0]):g}: nothing can be learned"]
