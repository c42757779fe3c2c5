"""The area under the curve, and the loss, of answers to yes or no."""

from __future__ import annotations

from typing import Sequence

import numpy as np

from fleetbert.tasks.evaluator import Evaluator
from fleetbert.tasks.metrics import Metrics


class ClickMetrics(Evaluator):
    gate_metric = "auc"
    figures = (("auc", "AUC"),)
    takes_metrics = False

    def evaluate(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Metrics:
        """n, auc and loss (nats) of answers to yes or no; truth 0 or 1 [rows], outputs logits
        [rows, 1]. ValueError where all are 0 or all are 1: there is no AUC."""
        logits = outputs[:, 0]
        return {"n": len(truth), "auc": auc(truth, logits), "loss": log_loss(truth, logits)}


def auc(truth: np.ndarray, scores: np.ndarray) -> float:
    """Area under the ROC curve: the chance that a 1 has a higher score than a 0; equal scores
    count half (Mann and Whitney 1947). ValueError where all are 0 or all are 1."""
    ones = int((truth > 0.5).sum())
    zeros = len(truth) - ones
    if not ones or not zeros:
        raise ValueError("without both a 1 and a 0 there is no AUC")
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2  # mean rank of those with the same score
    return float((ranks[places][truth > 0.5].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def log_loss(truth: np.ndarray, logits: np.ndarray) -> float:
    """Mean of -log p of what is true, in nats, where p is the logistic function of a logit."""
    signed = np.where(truth > 0.5, -1.0, 1.0) * logits.astype(np.float64)
    return float(np.logaddexp(0.0, signed).mean())
