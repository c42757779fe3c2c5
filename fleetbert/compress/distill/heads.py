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
from fleetbert.infer import heads as trained
from fleetbert.infer.heads import ATTENTION_HEADS


class Example(NamedTuple):
    """A batch of texts: which they are (int64 [texts]), which tokens are real (bool [texts,
    length]), what each head reads (one array a layer), the last layer's logits [texts, labels]."""

    numbers: np.ndarray
    real: np.ndarray
    inputs: list[np.ndarray]
    logits: np.ndarray


class Pooled(nn.Layer):
    """See `infer.heads.pooled`; reads what `infer.heads.pool` gives."""

    def __init__(self, width: int, inner: int, labels: int):
        super().__init__()
        self.inner = nn.Linear(2 * width, inner)
        self.out = nn.Linear(inner, labels)

    def forward(self, x: paddle.Tensor, _: paddle.Tensor) -> paddle.Tensor:
        return self.out(paddle.tanh(self.inner(x)))


class FastBert(nn.Layer):
    """See `infer.heads.fastbert`; reads hidden states."""

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


KINDS: dict[str, Callable[[int, int, int], nn.Layer]] = {"pooled": Pooled, "fastbert": FastBert}


def read_by(kind: str, hidden: np.ndarray, real: np.ndarray) -> np.ndarray:
    """What a head of that kind reads of hidden states [texts, length, width]; kept small."""
    return trained.pool(hidden, real) if kind == "pooled" else hidden.astype(np.float16)


def train(
    settings: schema.Exits, examples: Sequence[Example], labels: np.ndarray | None, seed: int
) -> Iterator[dict[str, np.ndarray]]:
    """Train the head of each layer in turn; its tensors as `infer.heads` names them.

    labels: int64 [texts], what they really are; needed where settings.labels_weight is not 0.
    """
    width = examples[0].inputs[0].shape[-1] // (2 if settings.head == "pooled" else 1)
    count = examples[0].logits.shape[1]
    for layer in range(len(examples[0].inputs)):
        paddle.seed(seed)
        head = KINDS[settings.head](width, settings.width, count)
        _train(head, settings, examples, layer, labels, seed)
        yield {name: value.numpy() for name, value in head.state_dict().items()}


def _train(
    head: nn.Layer,
    settings: schema.Exits,
    examples: Sequence[Example],
    layer: int,
    labels: np.ndarray | None,
    seed: int,
) -> None:
    steps = settings.epochs * len(examples)
    warm_up = max(1, steps // 10)
    schedule = paddle.optimizer.lr.LambdaDecay(
        settings.learning_rate,
        lambda step: min((step + 1) / warm_up, max(0.0, (steps - step) / (steps - warm_up + 1))),
    )
    optimizer = paddle.optimizer.AdamW(
        schedule, parameters=head.parameters(), weight_decay=settings.weight_decay
    )
    random = np.random.default_rng(seed)
    for _ in range(settings.epochs):
        for number in random.permutation(len(examples)):
            example = examples[number]
            x = paddle.to_tensor(example.inputs[layer].astype(np.float32))
            logits = head(F.dropout(x, settings.dropout), paddle.to_tensor(example.real))
            wanted = F.softmax(paddle.to_tensor(example.logits))
            loss = F.kl_div(F.log_softmax(logits), wanted, reduction="batchmean")
            if settings.labels_weight and labels is not None:
                truth = paddle.to_tensor(labels[example.numbers])
                loss = loss * (1 - settings.labels_weight)
                loss = loss + settings.labels_weight * F.cross_entropy(logits, truth)
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            schedule.step()
