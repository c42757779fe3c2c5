"""Heads after inner layers that learn to answer as the last layer does (FastBERT, Liu et al. 2020,
section 3.2.2): the backbone stays as it is, its hidden states are computed once, no labels needed.
"""

from __future__ import annotations

from typing import Callable, Iterator, NamedTuple, Sequence

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn

from fleetbert import config as schema
from fleetbert.data.packing import pack, packed_layout
from fleetbert.engines import exits
from fleetbert.engines import heads as trained
from fleetbert.engines.heads import ATTENTION_HEADS


class Example(NamedTuple):
    """A rank's part of a batch of texts: which they are (int64 [texts]), which tokens are real
    (bool [texts, length]), what each head reads (one array a layer), the last layer's logits
    [texts, labels], and a text's share of the batch's loss (0 where a rank only takes part)."""

    numbers: np.ndarray
    real: np.ndarray
    inputs: list[np.ndarray]
    logits: np.ndarray
    share: float


class Pooled(nn.Layer):
    """See `engines.heads.pooled`; reads what `engines.heads.pool` gives."""

    def __init__(self, width: int, inner: int, labels: int):
        super().__init__()
        self.inner = nn.Linear(2 * width, inner)
        self.out = nn.Linear(inner, labels)

    def forward(self, x: paddle.Tensor, _: paddle.Tensor) -> paddle.Tensor:
        return self.out(paddle.tanh(self.inner(x)))


class FastBert(nn.Layer):
    """See `engines.heads.fastbert`; reads hidden states."""

    def __init__(self, width: int, inner: int, labels: int):
        super().__init__()
        self.narrow = nn.Linear(width, inner)
        for name in ("query", "key", "value", "mix", "inner"):
            setattr(self, name, nn.Linear(inner, inner))
        self.out = nn.Linear(inner, labels)

    def forward(self, x: paddle.Tensor, real: paddle.Tensor) -> paddle.Tensor:
        x = paddle.tanh(self.narrow(x))
        query, key, value = (
            part.reshape([0, 0, ATTENTION_HEADS, -1]).transpose([0, 2, 1, 3])
            for part in (self.query(x[:, :1]), self.key(x), self.value(x))
        )
        scores = paddle.matmul(query, key, transpose_y=True) / query.shape[-1] ** 0.5
        scores = scores + (real.astype("float32")[:, None, None] - 1.0) * 1e4
        mixed = paddle.matmul(F.softmax(scores), value).transpose([0, 2, 1, 3]).flatten(1)
        return self.out(paddle.tanh(self.inner(self.mix(mixed))))


RANDOM_SHARE = 0.2  # of the texts: with `weighting: uncertainty` they count whole

KINDS: dict[str, Callable[[int, int, int], nn.Layer]] = {"pooled": Pooled, "fastbert": FastBert}


def read_by(kind: str, hidden: np.ndarray, real: np.ndarray) -> np.ndarray:
    """What a head of that kind reads of hidden states [texts, length, width]; kept small."""
    if kind != "pooled":
        return hidden.astype(np.float16)
    at = packed_layout(real)
    return trained.pool(pack(hidden, at), at)


def part_of(numbers: np.ndarray, rank: int, ranks: int) -> tuple[np.ndarray, float]:
    """The rows of a batch (int64) that a rank takes, and the share of each text in its loss; a
    rank for which there are none takes one of share 0, because all have to add up gradients."""
    rows = np.arange(len(numbers))[rank::ranks]
    return (rows, 1 / len(numbers)) if len(rows) else (np.zeros(1, np.int64), 0.0)


def train(
    settings: schema.Exits,
    examples: Sequence[Example],
    labels: np.ndarray | None,
    seed: int,
    rank: int = 0,
    add_up: Callable[[paddle.Tensor], object] | None = None,
    kind: str = "entropy",
) -> Iterator[dict[str, np.ndarray]]:
    """Train the head of each layer in turn; its tensors as `engines.heads` names them.

    labels: int64 [texts], what they really are; needed where settings.labels_weight is not 0.
    add_up: puts the sum over all ranks into a tensor; None: there is only this one.

    With `weighting: uncertainty` a text counts in a head as it would reach it, by the least
    uncertainty of the heads before; a `RANDOM_SHARE` of the texts, others in each epoch, counts
    whole, so that late heads see texts enough.

    kind: of answers, see `engines.exits.DOUBTS`. Of several labels each learns its probability; of
    numbers it is their squared error, in units of their spread, and all texts count whole.
    """
    center, spread = _standard(examples, add_up) if kind == "change" else (0.0, 1.0)
    if kind == "change":
        examples = [one._replace(logits=(one.logits - center) / spread) for one in examples]
        settings = settings.model_copy(update={"weighting": "none"})
    width = examples[0].inputs[0].shape[-1] // (2 if settings.head == "pooled" else 1)
    inner = settings.width or max(2, width // 12 * 2)  # even, for two attention heads
    count = examples[0].logits.shape[1]
    reach = [np.ones(len(example.numbers), np.float32) for example in examples]

    def learn(head: nn.Layer, layer: int) -> None:
        steps = settings.epochs * len(examples)
        warm_up = max(1, steps // 10)
        schedule = paddle.optimizer.lr.LambdaDecay(
            settings.learning_rate,
            lambda step: min(
                (step + 1) / warm_up, max(0.0, (steps - step) / (steps - warm_up + 1))
            ),
        )
        optimizer = paddle.optimizer.AdamW(
            schedule, parameters=head.parameters(), weight_decay=settings.weight_decay
        )
        random = np.random.default_rng(seed)
        for epoch in range(settings.epochs):
            for number in random.permutation(len(examples)):
                example = examples[number]
                x = paddle.to_tensor(example.inputs[layer].astype(np.float32))
                logits = head(F.dropout(x, settings.dropout), paddle.to_tensor(example.real))
                losses = LOSSES[kind](logits, paddle.to_tensor(example.logits))
                if settings.labels_weight and labels is not None:
                    truth = paddle.to_tensor(labels[example.numbers])
                    losses = losses * (1 - settings.labels_weight)
                    losses = losses + settings.labels_weight * F.cross_entropy(
                        logits, truth, reduction="none"
                    )
                if settings.weighting == "uncertainty":
                    weight = _weight(reach[number], example.numbers, seed, epoch)
                    losses = losses * paddle.to_tensor(weight)
                loss = losses.sum()
                (loss * example.share).backward()
                if add_up is not None:
                    for parameter in head.parameters():
                        add_up(parameter.grad)
                optimizer.step()
                optimizer.clear_grad()
                schedule.step()

    for layer in range(len(examples[0].inputs)):
        paddle.seed(seed)
        head = KINDS[settings.head](width, inner, count)
        paddle.seed(seed + rank)  # dropout's: of other texts in each rank
        learn(head, layer)
        if settings.weighting == "uncertainty":
            for example, reached in zip(examples, reach):
                np.minimum(reached, _uncertainty(head, example, layer, kind), out=reached)
        tensors = {name: value.numpy() for name, value in head.state_dict().items()}
        tensors["out.weight"] = tensors["out.weight"] * np.float32(spread)
        tensors["out.bias"] = tensors["out.bias"] * np.float32(spread) + np.float32(center)
        yield tensors


def _standard(
    examples: Sequence[Example], add_up: Callable[[paddle.Tensor], object] | None
) -> tuple[float, float]:
    """Mean and standard deviation of the numbers that are to be answered, of all ranks."""
    sums = np.zeros(3)
    for example in examples:
        values = example.logits if example.share else np.zeros(0)
        sums += [values.size, values.sum(), np.square(values).sum()]
    added = paddle.to_tensor(sums)
    if add_up is not None:
        add_up(added)
    count, total, squares = added.numpy().tolist()
    center = total / count
    return center, max(squares / count - center**2, 1e-12) ** 0.5


def _weight(reach: np.ndarray, numbers: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    """What texts count in an epoch, float32 [texts]; the same in every rank."""
    drawn = np.random.default_rng([seed, epoch]).random(int(numbers.max()) + 1)[numbers]
    return np.where(drawn < RANDOM_SHARE, np.float32(1), reach)


# Of a head's outputs and the model's, both [texts, outputs]: [texts].
LOSSES: dict[str, Callable[[paddle.Tensor, paddle.Tensor], paddle.Tensor]] = {
    "entropy": lambda outputs, wanted: F.kl_div(
        F.log_softmax(outputs), F.softmax(wanted), reduction="none"
    ).sum(-1),
    "labels": lambda outputs, wanted: F.binary_cross_entropy_with_logits(
        outputs, F.sigmoid(wanted), reduction="none"
    ).sum(-1),
    "change": lambda outputs, wanted: (outputs - wanted).square().sum(-1),
}


def _uncertainty(head: nn.Layer, example: Example, layer: int, kind: str) -> np.ndarray:
    """Of the head's answers to a part, float32 [texts]."""
    with paddle.no_grad():
        x = paddle.to_tensor(example.inputs[layer].astype(np.float32))
        outputs = head(x, paddle.to_tensor(example.real)).numpy()
        return exits.DOUBTS[kind](outputs, None, 1.0)
