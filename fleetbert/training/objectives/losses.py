"""The loss of each kind of task. Arrays hold what `fleetbert.tasks` collects: `weight` float32
(examples), and `labels`."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn

from fleetbert.core.registry import Registry
from fleetbert.models.heads import Headed
from fleetbert.tasks import Arrays, Part
from fleetbert.tasks.token_classification import tagged

FAR = np.float32(-1e9)  # a score whose exponential is 0


class Objective(ABC):
    """The network is the one of the task's head. `has_classes`: it gives logits of the labels.
    `pooled`: the loss needs the pooler. `passes`: 2 where `again` comes after the gradients of
    `loss`."""

    has_classes = False
    pooled = True
    passes = 1

    def prepare(self, network: Headed) -> None:
        """Change a network before its weights are given to an optimizer."""
        if not self.pooled:  # data parallel must not wait for its gradients
            for weight in network.network.bert.pooler.parameters():
                weight.stop_gradient = True

    @abstractmethod
    def loss(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        """A float32 scalar: the sum over the examples, each with its `weight`."""

    def again(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        """As `loss`, of the same arrays, when its gradients are there; theirs are added."""
        raise NotImplementedError

    def predict(self, network: nn.Layer, arrays: Arrays) -> Part:
        """What `tasks.Task.evaluate_parts` needs of one batch: the outputs of its texts."""
        logits = network(**arrays["inputs"]).astype("float32").numpy()
        return {"texts": arrays["texts"], "logits": logits}


class CrossEntropy(Objective):
    """A label for each text or pair of texts."""

    has_classes = True

    def loss(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        logits = model(**arrays["inputs"])
        losses = F.cross_entropy(logits.astype("float32"), arrays["labels"], reduction="none")
        return (losses.flatten() * arrays["weight"]).sum()


class BinaryCrossEntropy(Objective):
    """Several labels for each text; of a text the mean over the labels.

    positive: what a text that has a label counts in the label's loss, float32 [labels]; None: as
    much as one that has it not."""

    def __init__(self, positive: np.ndarray | None = None):
        self.positive = None if positive is None else paddle.to_tensor(positive)

    def loss(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        logits = model(**arrays["inputs"]).astype("float32")  # (texts, labels)
        truth = arrays["labels"].astype("float32")
        losses = F.binary_cross_entropy_with_logits(logits, truth, reduction="none")
        if self.positive is not None:  # Paddle 2.6.2's own pos_weight has wrong gradients
            losses = losses * (1 + (self.positive - 1) * truth)
        return (losses.mean(-1) * arrays["weight"]).sum()


class SquaredError(Objective):
    """A number for each text or pair of texts."""

    def loss(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        values = model(**arrays["inputs"]).astype("float32").flatten()  # (texts, 1)
        return ((values - arrays["labels"]).square() * arrays["weight"]).sum()


class Relevance(Objective):
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


class Similarity(Objective):
    """Vectors of texts that belong together.

    With numbers: the squared error of the cosines of pairs. Without: a text has to find its second
    one among all of the batch (InfoNCE, van den Oord et al. 2018, equation 4), of triplets among
    the third ones too; what belongs to the same first text in another example is no wrong answer,
    and is left out. Ranks and accumulated parts have batches of their own."""

    pooled = False

    def loss(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        """arrays: `places` int64 (examples, texts of one), where their vectors are; `groups` int64
        (examples), of examples with the same first text; `labels` float32 (examples), NaN without
        numbers; `temperature`."""
        vectors = model(**arrays["inputs"]).astype("float32")  # (texts, width)
        places = paddle.to_tensor(arrays["places"])
        first, *others = (paddle.gather(vectors, places[:, n]) for n in range(places.shape[1]))
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
            own = paddle.arange(len(groups))
            losses = F.cross_entropy(scores, own, reduction="none")
        return (losses.flatten() * arrays["weight"]).sum()


class MaskedWords(CrossEntropy):
    """The words that are hidden."""

    pooled = False

    def predict(self, network: nn.Layer, arrays: Arrays) -> Part:
        logits = network(**arrays["inputs"]).astype("float32")
        losses = F.cross_entropy(logits, arrays["labels"], reduction="none").flatten()
        right = logits.argmax(-1) == arrays["labels"]
        counts = arrays["weight"].numpy() > 0
        return {"losses": losses.numpy()[counts], "right": right.numpy()[counts]}


class TokenCrossEntropy(Objective):
    """A tag for each word: of its first token, the others have no weight."""

    pooled = False

    def loss(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        logits = model(**arrays["inputs"]).astype("float32")  # (rows, length, labels)
        losses = F.cross_entropy(logits, arrays["labels"], reduction="none").squeeze(-1)
        return (losses * arrays["weight"]).sum()

    def predict(self, network: nn.Layer, arrays: Arrays) -> Part:
        logits = network(**arrays["inputs"]).astype("float32").numpy()
        words = arrays["words"]
        return {"texts": arrays["texts"], "logits": tagged(logits, words, [""] * len(words))}


_objectives: Registry[Objective] = Registry(
    "task.name",
    {
        "classification": CrossEntropy(),
        "pair_classification": CrossEntropy(),
        "regression": SquaredError(),
        "pair_regression": SquaredError(),
        "ranking": Relevance(),
        "multi_label_classification": BinaryCrossEntropy(),
        "token_classification": TokenCrossEntropy(),
        "embedding": Similarity(),
        "mlm": MaskedWords(),
    },
)
register = _objectives.__setitem__
get = _objectives.__getitem__
