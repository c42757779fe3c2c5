"""The area under the curve, and the loss, of answers to yes or no."""

from __future__ import annotations

import numpy as np

from fleetbert.data import criteo
from fleetbert.tasks.metrics import Metrics

FIGURES = {"auc": "AUC"}


def evaluate(truth: np.ndarray, logits: np.ndarray) -> Metrics:
    """n, auc and loss (nats) of answers to yes or no; truth 0 or 1 [rows], logits float [rows].

    ValueError where all are 0 or all are 1: there is no AUC.
    """
    auc, loss = criteo.auc(truth, logits), criteo.log_loss(truth, logits)
    return {"n": len(truth), "auc": auc, "loss": loss}
