"""What can be trained: all that the loop, the strategies and the callbacks ask for.

tests/training/test_strategies.py trains images. What a job reads before its first step and writes
after its last one (`train.job`) is of texts, or of clicks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Sequence

import numpy as np
import paddle
from paddle import nn

from fleetbert.tasks import Arrays, Criterion, Metrics, Part
from fleetbert.tasks.collect import Collector
from fleetbert.training.sparse_table import SparseTable

Described = Metrics  # numbers and texts for JSON, in lists and dicts


class Trainable(ABC):
    """An example is a text, an image, ...; examples have numbers from 0.

    Training and evaluation arrays are its own affair but for `n_texts`, the examples in them, and
    `n_tokens`, their tokens (0 where there are none): progress and speeds count these.

    collector: makes the arrays of steps, in NumPy; with `data.num_workers` in other processes.
    table: rows that the network computes with besides, of a table that a rank cannot hold; the
        arrays then have `ids`, of those that they need.
    passes: 2 where `again` has something to learn.
    teachers: networks that the loss asks and that learn nothing.
    labels: in the order of the logits, where there are some.
    float32: the key and value of the job that want float32 on a CPU, None where none does.

    What is never evaluated needs no `dev_batches` and what follows from them.
    """

    network: nn.Layer
    collector: Collector
    table: SparseTable | None = None
    passes = 1
    teachers: Sequence[nn.Layer] = ()
    labels: Sequence[str] = ()
    float32: str | None = None

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Of the training data: a run does not go on with other data."""

    @property
    def origins(self) -> dict[str, str]:
        """Digests of what the job names by a path, by config key: a resumed run may find the same
        at another path. `data.train` is `fingerprint`."""
        return {}

    def plan(self, epoch: int) -> Sequence[np.ndarray]:
        """See `Collector.plan`."""
        return self.collector.plan(epoch)

    def micro_batches(
        self, indices: np.ndarray, epoch: int, parts: int, shard: slice
    ) -> list[Arrays]:
        """`Collector.micro_batches` as tensors."""
        collected = self.collector.micro_batches(indices, epoch, parts, shard)
        return [self.tensors(arrays) for arrays in collected]

    def tensors(self, arrays: Arrays) -> Arrays:
        """What `collector` gives, as Paddle's tensors."""
        inputs = {name: paddle.to_tensor(array) for name, array in arrays["inputs"].items()}
        labels, weight = (paddle.to_tensor(arrays[name]) for name in ("labels", "weight"))
        return {**arrays, "inputs": inputs, "labels": labels, "weight": weight}

    @abstractmethod
    def loss(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        """A float32 scalar. `model` is called like `network`; it may wait for other ranks."""

    def again(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        """As `loss`, of the same arrays, when its gradients are there; theirs are added."""
        raise NotImplementedError

    def dev_batches(self) -> Sequence[np.ndarray]:
        """The examples to evaluate on in batches, which ranks share out; may be empty."""
        return ()

    def dev_arrays(self, part: np.ndarray) -> Arrays:
        """One of these batches for `predict`."""
        raise NotImplementedError

    def predict(self, network: nn.Layer, arrays: Arrays) -> Part:
        """What one batch gives, to be sent between ranks."""
        raise NotImplementedError

    def evaluate(self, parts: Sequence[Part]) -> Metrics:
        """Metrics from what all batches gave, in any order; with `loss`."""
        raise NotImplementedError

    def criterion(self, metrics: Metrics) -> Criterion:
        """What tells the best step."""
        raise NotImplementedError

    @abstractmethod
    def locate(self, indices: Sequence[int]) -> list[Described]:
        """Where training examples come from and what they are, for bad_steps.jsonl."""

    def describe(self) -> Described:
        """What summary.json says of the data and the initial weights."""
        return {}

    def notes(self) -> list[str]:
        """What was read, where a user would want to know."""
        return []

    def warnings(self) -> list[str]:
        """What of it looks like a mistake."""
        return []
