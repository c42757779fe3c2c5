"""How near the vectors of texts that belong together are."""

from __future__ import annotations

import numpy as np

import fleetbert.compat.prepared  # noqa: F401  isort: skip
import paddle
import paddle.nn.functional as F

from fleetbert.tasks.collect import Arrays
from fleetbert.tasks.loss import Loss

FAR = np.float32(-1e9)  # a score whose exponential is 0


class Similarity(Loss):
    """Vectors of texts that belong together.

    With numbers: the squared error of the cosines of pairs. Without: a text has to find its second
    one among all of the batch (InfoNCE, van den Oord et al. 2018, equation 4), of triplets among
    the third ones too; what belongs to the same first text in another example is no wrong answer,
    and is left out. Ranks and accumulated parts have batches of their own."""

    pooled = False

    def of_outputs(self, outputs: paddle.Tensor, arrays: Arrays) -> paddle.Tensor:
        """arrays: `places` int64 (examples, texts of one), where their vectors are; `groups` int64
        (examples), of examples with the same first text; `labels` float32 (examples), NaN without
        numbers; `temperature`."""
        places = paddle.to_tensor(arrays["places"])
        first, *others = (paddle.gather(outputs, places[:, n]) for n in range(places.shape[1]))
        if arrays["has_numbers"]:
            cosines = (first * others[0]).sum(-1)
            losses = (cosines - arrays["labels"]).square()
        else:
            scores = paddle.matmul(first, paddle.concat(others), transpose_y=True)
            groups = np.asarray(arrays["groups"])
            left_out = np.zeros(scores.shape, np.float32)
            left_out[:, : len(groups)] = groups[:, None] == groups
            np.fill_diagonal(left_out, 0)
            scores = scores / arrays["temperature"] + paddle.to_tensor(left_out * FAR)
            targets = paddle.arange(len(groups))
            losses = F.cross_entropy(scores, targets, reduction="none")
        return (losses.flatten() * arrays["weight"]).sum()

    def of_teacher(
        self, outputs: paddle.Tensor, known: paddle.Tensor, arrays: Arrays, temperature: float
    ) -> paddle.Tensor:
        """The squared error of the cosines of all texts of the batch with each other, which takes
        a teacher of any width (Tung and Mori 2019, "Similarity-Preserving Knowledge Distillation").
        """
        cosines, expected = (paddle.matmul(v, v, transpose_y=True) for v in (outputs, known))
        others = max(1, outputs.shape[0] - 1)  # a text's cosine with itself is 1 in both
        losses = (cosines - expected).square().sum(-1) / others  # (texts)
        return losses.mean() * arrays["weight"].sum()


LOSS = Similarity()
