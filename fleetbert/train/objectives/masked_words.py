"""Masked language model: cross entropy over the hidden words."""

from __future__ import annotations

import paddle.nn.functional as F
from paddle import nn

from fleetbert.models.heads import Headed
from fleetbert.tasks import Arrays, Part
from fleetbert.train.objectives.classification import CrossEntropy


class MaskedWords(CrossEntropy):
    def prepare(self, network: Headed) -> None:
        # The pooler gives the loss nothing: data parallel must not wait for its gradients.
        for weight in network.network.bert.pooler.parameters():
            weight.stop_gradient = True

    def predict(self, network: nn.Layer, arrays: Arrays) -> Part:
        logits = network(**arrays["inputs"]).astype("float32")
        losses = F.cross_entropy(logits, arrays["labels"], reduction="none").flatten()
        right = logits.argmax(-1) == arrays["labels"]
        counts = arrays["weight"].numpy() > 0
        return {"losses": losses.numpy()[counts], "right": right.numpy()[counts]}
