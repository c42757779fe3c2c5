"""Several labels for each text: binary cross entropy of each label by itself."""

from __future__ import annotations

import paddle
import paddle.nn.functional as F
from paddle import nn

from fleetbert.tasks import Arrays
from fleetbert.train.objectives.objective import Objective


class BinaryCrossEntropy(Objective):
    def loss(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        """Weighted sum of the texts' cross entropies, each the mean over the labels."""
        logits = model(**arrays["inputs"]).astype("float32")  # (texts, labels)
        truth = arrays["labels"].astype("float32")
        losses = F.binary_cross_entropy_with_logits(logits, truth, reduction="none")
        return (losses.mean(-1) * arrays["weight"]).sum()
