"""Heads after inner layers that learn to answer as the last layer does (FastBERT, Liu et al. 2020,
section 3.2.2): the backbone stays as it is, its hidden states are computed once, no labels needed.
"""

from __future__ import annotations

from typing import Callable, NamedTuple, Sequence

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn

from fleetbert import config as schema
from fleetbert.data.packing import pack, packed_layout
from fleetbert.engines import exit_heads
from fleetbert.engines.exit_heads import ATTENTION_HEADS
from fleetbert.tasks import Arrays
from fleetbert.training.callbacks.progress import Progress
from fleetbert.training.loop import Run
from fleetbert.training.strategies.single import Single
from fleetbert.training.trainable import Described, Trainable


class Example(NamedTuple):
    """A rank's part of a batch of texts: which they are (int64 [texts]), which tokens are real
    (bool [texts, length]), what each head reads [heads, rows, ...], the last layer's answers
    [rows, outputs] (a row is a text, or a token of `own_tokens`), and a text's share of the batch's
    loss (0 where a rank only takes part)."""

    numbers: np.ndarray
    real: np.ndarray
    inputs: np.ndarray
    logits: np.ndarray
    share: float


class Linears(nn.Layer):
    """A Linear for each head: [heads, rows, inputs] → [heads, rows, outputs]."""

    def __init__(self, heads: int, inputs: int, outputs: int):
        super().__init__()
        start = nn.initializer.XavierUniform(inputs, outputs)
        self.weight = self.create_parameter([heads, inputs, outputs], default_initializer=start)
        self.bias = self.create_parameter([heads, 1, outputs], is_bias=True)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return paddle.matmul(x, self.weight) + self.bias


class Pooled(nn.Layer):
    """See `engines.exit_heads.pooled` and `tokens`; reads what `engines.exit_heads.pool` gives, or
    states of tokens."""

    def __init__(self, heads: int, read: int, inner: int, labels: int):
        super().__init__()
        self.inner = Linears(heads, read, inner)
        self.out = Linears(heads, inner, labels)

    def forward(self, x: paddle.Tensor, _: paddle.Tensor) -> paddle.Tensor:
        return self.out(paddle.tanh(self.inner(x)))


class Vector(nn.Layer):
    """See `engines.exit_heads.vector`."""

    def __init__(self, heads: int, read: int, _: int, outputs: int):
        super().__init__()
        self.out = Linears(heads, read, outputs)

    def forward(self, x: paddle.Tensor, _: paddle.Tensor) -> paddle.Tensor:
        return F.normalize(self.out(x), axis=-1)


class FastBert(nn.Layer):
    """See `engines.exit_heads.fastbert`; reads hidden states [heads, texts, length, width]."""

    def __init__(self, heads: int, read: int, inner: int, labels: int):
        super().__init__()
        self.narrow = Linears(heads, read, inner)
        for name in ("query", "key", "value", "mix", "inner"):
            setattr(self, name, Linears(heads, inner, inner))
        self.out = Linears(heads, inner, labels)

    def forward(self, x: paddle.Tensor, real: paddle.Tensor) -> paddle.Tensor:
        heads, texts, length, _ = x.shape
        x = paddle.tanh(self.narrow(x.flatten(1, 2)))  # (heads, texts * length, inner)
        first = x.reshape([heads, texts, length, -1])[:, :, 0]
        query, key, value = (
            part.reshape(
                [heads, texts, -1, ATTENTION_HEADS, x.shape[-1] // ATTENTION_HEADS]
            ).transpose([0, 1, 3, 2, 4])  # (heads, texts, attention heads, tokens, width)
            for part in (self.query(first), self.key(x), self.value(x))
        )
        scores = paddle.matmul(query, key, transpose_y=True) / query.shape[-1] ** 0.5
        scores = scores + (real.astype("float32")[:, None, None] - 1.0) * 1e4
        mixed = paddle.matmul(F.softmax(scores), value).flatten(2)
        return self.out(paddle.tanh(self.inner(self.mix(mixed))))


# Of (heads, the width of what is read, inner width, outputs).
KINDS: dict[str, Callable[[int, int, int, int], nn.Layer]] = {
    "pooled": Pooled,
    "fastbert": FastBert,
    "tokens": Pooled,
    "vector": Vector,
}


def read_by(kind: str, hidden: np.ndarray, real: np.ndarray) -> np.ndarray:
    """What a head of that kind reads of hidden states [texts, length, width]; kept small."""
    if kind == "fastbert":
        return hidden.astype(np.float16)
    if kind == "tokens":
        return hidden[own_tokens(real)].astype(np.float16)
    at = packed_layout(real.sum(1))
    return exit_heads.pool(pack(hidden[real], at), at)


def own_tokens(real: np.ndarray) -> np.ndarray:
    """Of tokens that are real (bool [texts, length]) those between the special ones at both ends,
    which `engines.exits.of_tokens` asks."""
    inner = real.copy()
    inner[:, 0] = inner[np.arange(len(real)), real.sum(1) - 1] = False
    return inner


def part_of(numbers: np.ndarray, rank: int, ranks: int) -> tuple[np.ndarray, float]:
    """The rows of a batch (int64) that a rank takes, and the share of each text in its loss; a
    rank for which there are none takes one of share 0, because all have to add up gradients."""
    rows = np.arange(len(numbers))[rank::ranks]
    return (rows, 1 / len(numbers)) if len(rows) else (np.zeros(1, np.int64), 0.0)


class Exits(Trainable):
    """The heads after all inner layers, which learn side by side. An example is a batch of texts.

    labels: int64 [texts], what they really are; needed where settings.labels_weight is not 0.
    head, kind: of `engines.exit_heads.KINDS`, and of answers, see `engines.exits.DOUBTS`.
    """

    fingerprint = ""  # these runs leave no checkpoint

    def __init__(
        self,
        settings: schema.Exits,
        examples: Sequence[Example],
        seed: int,
        head: str,
        kind: str,
        labels: np.ndarray | None,
    ):
        self.settings, self.examples, self.seed = settings, examples, seed
        self.kind, self.truth = kind, labels
        heads, *_, read = examples[0].inputs.shape
        width = read // (2 if head in ("pooled", "vector") else 1)
        inner = settings.width or max(2, width // 12 * 2)  # even, for two attention heads
        paddle.seed(seed)
        self.network = KINDS[head](heads, read, inner, examples[0].logits.shape[1])

    def plan(self, epoch: int) -> list[np.ndarray]:
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.examples))
        return np.split(order, len(order))

    def micro_batches(
        self,
        indices: np.ndarray,
        epoch: int,  # noqa: ARG002
        parts: int,  # noqa: ARG002
        shard: slice,  # noqa: ARG002
    ) -> list[Arrays]:
        """The example, which is this rank's part of its batch already."""
        example = self.examples[indices[0]]
        return [
            {
                "inputs": paddle.to_tensor(example.inputs.astype(np.float32, copy=False)),
                "real": paddle.to_tensor(example.real),
                "logits": paddle.to_tensor(example.logits),
                "numbers": example.numbers,
                "share": example.share,
                "n_texts": len(example.numbers),
                "n_tokens": int(example.real.sum()),
            }
        ]

    def loss(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        """The sum of the heads' losses, of which each is the mean over the step's texts."""
        labels_weight = self.settings.labels_weight
        outputs = model(F.dropout(arrays["inputs"], self.settings.dropout), arrays["real"])
        losses = LOSSES[self.kind](outputs, arrays["logits"].expand_as(outputs)).sum()
        if labels_weight and self.truth is not None:
            truth = paddle.to_tensor(self.truth[arrays["numbers"]]).flatten()
            known = F.cross_entropy(
                outputs.flatten(0, 1), truth.tile([outputs.shape[0]]), reduction="sum"
            )
            losses = (1 - labels_weight) * losses + labels_weight * known
        return losses * arrays["share"]

    def locate(self, indices: Sequence[int]) -> list[Described]:
        return [{"texts": self.examples[index].numbers.tolist()} for index in indices]


def training_job(job: schema.SelfDistill) -> schema.Config:
    """The training of heads, as the loop takes it."""
    settings = job.distill
    return schema.Config(
        data=schema.Data(train=job.data.train),
        model=schema.Model(init=job.bundle),
        optimizer=schema.Optimizer(
            learning_rate=settings.learning_rate,
            weight_decay=settings.weight_decay,
            warmup_ratio=0.1,
            max_grad_norm=0,
        ),
        trainer=schema.Trainer(epochs=settings.epochs, seed=job.seed, device="cpu"),
        output_dir=job.bundle,
    )


def train(
    job: schema.Config,
    strategy: Single,
    settings: schema.Exits,
    examples: Sequence[Example],
    labels: np.ndarray | None,
    head: str = "pooled",
    kind: str = "entropy",
) -> list[dict[str, np.ndarray]]:
    """Train the heads of all layers; the tensors of each as `engines.exit_heads` names them.

    job: of `training_job`; labels, head, kind: see `Exits`. Of several labels each learns its
    probability; of vectors and numbers it is their squared error, of numbers in units of their
    spread.
    """
    numbers = kind == "change" and head != "vector"
    center, spread = _standard(examples, strategy) if numbers else (0.0, 1.0)
    if numbers:
        examples = [part._replace(logits=(part.logits - center) / spread) for part in examples]
    task = Exits(settings, examples, job.trainer.seed, head, kind, labels)
    run = Run(job, strategy, task)
    run.callbacks = [Progress()] if strategy.rank == 0 else []
    run.train()
    heads = by_head(task.network)
    for tensors in heads:
        tensors["out.weight"] = tensors["out.weight"] * np.float32(spread)
        tensors["out.bias"] = tensors["out.bias"] * np.float32(spread) + np.float32(center)
    return heads


def by_head(network: nn.Layer) -> list[dict[str, np.ndarray]]:
    """The tensors of each of the heads that learned side by side."""
    stacked = {name: value.numpy() for name, value in network.state_dict().items()}
    for name, values in stacked.items():
        if name.endswith("bias"):
            stacked[name] = values[:, 0]  # (heads, 1, outputs)
    heads = len(stacked["out.bias"])
    return [{name: values[head] for name, values in stacked.items()} for head in range(heads)]


def _standard(examples: Sequence[Example], strategy: Single) -> tuple[float, float]:
    """Mean and standard deviation of the numbers that are to be answered, of all ranks."""
    sums = np.zeros(3)
    for example in examples:
        values = example.logits if example.share else np.zeros(0)
        sums += [values.size, values.sum(), np.square(values).sum()]
    count, total, squares = np.sum(strategy.gather(sums), axis=0).tolist()
    center = total / count
    return center, max(squares / count - center**2, 1e-12) ** 0.5


def _divergence(outputs: paddle.Tensor, teacher: paddle.Tensor) -> paddle.Tensor:
    return F.kl_div(F.log_softmax(outputs), F.softmax(teacher), reduction="none").sum(-1)


# Of heads' outputs and the model's, both [heads, rows, outputs]: [heads, rows].
LOSSES: dict[str, Callable[[paddle.Tensor, paddle.Tensor], paddle.Tensor]] = {
    "entropy": _divergence,
    "tokens": _divergence,
    "labels": lambda outputs, teacher: F.binary_cross_entropy_with_logits(
        outputs, F.sigmoid(teacher), reduction="none"
    ).sum(-1),
    "change": lambda outputs, teacher: (outputs - teacher).square().sum(-1),
}
