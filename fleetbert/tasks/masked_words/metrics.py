"""Loss and accuracy of hidden words."""

from __future__ import annotations

from typing import Sequence

import numpy as np

from fleetbert.core.errors import UserError
from fleetbert.tasks.evaluator import Criterion, Evaluator, Part
from fleetbert.tasks.metrics import Metrics


class WordMetrics(Evaluator):
    gate_metric = "accuracy"
    figures = (("accuracy", "accuracy"),)
    takes_metrics = False

    def evaluate_parts(
        self, parts: Sequence[Part], truth: np.ndarray, labels: Sequence[str], room: np.ndarray
    ) -> Metrics:
        """Mean loss and accuracy over the dev texts' masked words; `n` counts the words."""
        losses = np.concatenate([part["losses"] for part in parts])
        right = np.concatenate([part["right"] for part in parts])
        if not len(losses):
            raise UserError("data.dev: no text of it has a word to mask")
        return {"n": len(losses), "loss": float(losses.mean()), "accuracy": float(right.mean())}

    def criterion(self, wanted: str, metrics: Metrics) -> Criterion:
        return Criterion("loss", True)
