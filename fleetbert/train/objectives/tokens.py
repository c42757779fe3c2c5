"""A tag for each word: cross entropy of the tokens that have one."""

from __future__ import annotations

import paddle
import paddle.nn.functional as F
from paddle import nn

from fleetbert.models.heads import Headed
from fleetbert.tasks import Arrays, Part
from fleetbert.tasks.token_classification import tagged
from fleetbert.train.objectives.objective import Objective


class TokenCrossEntropy(Objective):
    def prepare(self, network: Headed) -> None:
        # The pooler gives the loss nothing: data parallel must not wait for its gradients.
        for weight in network.network.bert.pooler.parameters():
            weight.stop_gradient = True

    def loss(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        """Weighted sum of the tokens' cross entropies; a token without a tag has no weight."""
        logits = model(**arrays["inputs"]).astype("float32")  # (rows, length, labels)
        losses = F.cross_entropy(logits, arrays["labels"], reduction="none").squeeze(-1)
        return (losses * arrays["weight"]).sum()

    def predict(self, network: nn.Layer, arrays: Arrays) -> Part:
        logits = network(**arrays["inputs"]).astype("float32").numpy()
        words = arrays["words"]
        return {"texts": arrays["texts"], "logits": tagged(logits, words, [""] * len(words))}
