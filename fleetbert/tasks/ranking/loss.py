"""Cross entropy among the documents of a query."""

from __future__ import annotations

import fleetbert.compat.prepared  # noqa: F401  isort: skip
import paddle
import paddle.nn.functional as F
from paddle import nn

from fleetbert.tasks.collect import Arrays
from fleetbert.tasks.loss import Loss


class Relevance(Loss):
    """Documents that answer a query before those that do not.

    With one negative the logistic loss of the difference (RankNet: Burges et al. 2005, section 3),
    with several the cross entropy of the right one among all (localized contrastive estimation: Gao
    et al. 2021, equation 6), which is the same for one. Without, each pair's binary cross entropy
    (Nogueira and Cho 2019)."""

    def loss(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        """arrays: `places` int64 (examples, pairs of one), the right one first; `labels` float32
        (examples), of examples that are one pair."""
        values = model(**arrays["inputs"]).astype("float32").flatten()  # (pairs)
        places = paddle.to_tensor(arrays["places"])
        values = paddle.gather(values, places.flatten()).reshape(places.shape)
        if places.shape[1] > 1:
            first = paddle.zeros(places.shape[:1], "int64")
            losses = F.cross_entropy(values, first, reduction="none")
        else:
            losses = F.binary_cross_entropy_with_logits(
                values[:, 0], arrays["labels"].astype("float32"), reduction="none"
            )
        return (losses.flatten() * arrays["weight"]).sum()


LOSS = Relevance()
