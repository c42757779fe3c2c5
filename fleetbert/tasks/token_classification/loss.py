"""Cross entropy of the words' tags."""

from __future__ import annotations

import fleetbert.compat.prepared  # noqa: F401  isort: skip
import paddle
import paddle.nn.functional as F
from paddle import nn

from fleetbert.tasks.classification.loss import soft_cross_entropy
from fleetbert.tasks.collect import Arrays
from fleetbert.tasks.evaluator import Part
from fleetbert.tasks.loss import Loss
from fleetbert.tasks.token_classification.scheme import tagged


class TokenCrossEntropy(Loss):
    """A tag for each word: of its first token, the others have no weight."""

    has_classes = True
    pooled = False

    def of_outputs(self, outputs: paddle.Tensor, arrays: Arrays) -> paddle.Tensor:
        losses = F.cross_entropy(outputs, arrays["labels"], reduction="none").squeeze(-1)
        return (losses * arrays["weight"]).sum()

    def of_teacher(
        self, outputs: paddle.Tensor, known: paddle.Tensor, arrays: Arrays, temperature: float
    ) -> paddle.Tensor:
        return (soft_cross_entropy(outputs, known, temperature) * arrays["weight"]).sum()

    def predict(self, network: nn.Layer, arrays: Arrays) -> Part:
        logits = network(**arrays["inputs"]).astype("float32").numpy()
        words, flat = arrays["words"], logits.reshape(-1, logits.shape[-1])
        of_texts = (flat[tokens] for tokens in arrays["tokens"])
        return {"texts": arrays["texts"], "logits": tagged(of_texts, words, [""] * len(words))}


LOSS = TokenCrossEntropy()
