"""Cross entropy of the hidden words."""

from __future__ import annotations

import fleetbert.compat.prepared  # noqa: F401  isort: skip
import paddle.nn.functional as F
from paddle import nn

from fleetbert.tasks.classification.loss import CrossEntropy
from fleetbert.tasks.collect import Arrays
from fleetbert.tasks.evaluator import Part


class MaskedWords(CrossEntropy):
    """The words that are hidden."""

    pooled = False

    def predict(self, network: nn.Layer, arrays: Arrays) -> Part:
        logits = network(**arrays["inputs"]).astype("float32")
        losses = F.cross_entropy(logits, arrays["labels"], reduction="none").flatten()
        right = logits.argmax(-1) == arrays["labels"]
        counts = arrays["weight"].numpy() > 0
        return {"losses": losses.numpy()[counts], "right": right.numpy()[counts]}


LOSS = MaskedWords()
