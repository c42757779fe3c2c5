"""The interface of what is trained, for the loop, the strategies and the callbacks.

tests/training/test_strategies.py trains images. `training.job` reads and writes
texts or rows only.
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
    """Data, a network and a loss. An example is a text, an image, ...; examples count from 0.

    Training and evaluation arrays may have any form, but need `n_texts`, the number of their
    examples, and `n_tokens`, their tokens (0 without tokens), for progress and speeds.

    collector: makes the arrays of steps in NumPy; in worker processes with `data.num_workers`.
    table: further rows of the network, of a table that a rank cannot hold; the arrays then have
        `ids`, those of the rows that they need.
    passes: 2 if `again` has a second loss.
    labels: in the order of the logits, if there are any.
    float32: the key and value of the job that need float32 on a CPU, or None.

    Without evaluation, `dev_batches` and the methods that need them can be left out.
    """

    network: nn.Layer
    collector: Collector
    table: SparseTable | None = None
    passes = 1
    labels: Sequence[str] = ()
    float32: str | None = None

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """The digest of the training data. A run cannot resume with other data."""

    @property
    def origins(self) -> dict[str, str]:
        """The digests of files that the job names, by config key: a resumed run may have the same
        files at other paths. `data.train` is `fingerprint`."""
        return {}

    def plan(self, epoch: int) -> Sequence[np.ndarray]:
        """See `Collector.plan`."""
        return self.collector.plan(epoch)

    def micro_batches(
        self, indices: np.ndarray, epoch: int, parts: int, shard: slice
    ) -> list[Arrays]:
        """Return `Collector.micro_batches` as tensors."""
        collected = self.collector.micro_batches(indices, epoch, parts, shard)
        return [self.tensors(arrays) for arrays in collected]

    def tensors(self, arrays: Arrays) -> Arrays:
        """Return arrays of `collector` as Paddle's tensors."""
        inputs = {name: paddle.to_tensor(array) for name, array in arrays["inputs"].items()}
        labels, weight = (paddle.to_tensor(arrays[name]) for name in ("labels", "weight"))
        return {**arrays, "inputs": inputs, "labels": labels, "weight": weight}

    @abstractmethod
    def loss(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        """Return a float32 scalar. `model` is called as `network`; it may wait for other ranks."""

    def again(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        """Return a second loss of the arrays, after the backward of `loss`; gradients add up."""
        raise NotImplementedError

    def dev_batches(self) -> Sequence[np.ndarray]:
        """Return the dev examples in batches, which ranks share; may be empty."""
        return ()

    def dev_arrays(self, part: np.ndarray) -> Arrays:
        """Return the arrays of one of these batches, for `predict`."""
        raise NotImplementedError

    def predict(self, network: nn.Layer, arrays: Arrays) -> Part:
        """Return the answers to one batch, which can be sent between ranks."""
        raise NotImplementedError

    def evaluate(self, parts: Sequence[Part]) -> Metrics:
        """Return metrics, among them `loss`, from the answers to all batches, in any order."""
        raise NotImplementedError

    def criterion(self, metrics: Metrics) -> Criterion:
        """Return the criterion of the best step."""
        raise NotImplementedError

    @abstractmethod
    def locate(self, indices: Sequence[int]) -> list[Described]:
        """Return origin and content of training examples, for bad_steps.jsonl."""

    def describe(self) -> Described:
        """Return the description of data and initial weights for summary.json."""
        return {}

    def notes(self) -> list[str]:
        """Return messages about what was read."""
        return []

    def warnings(self) -> list[str]:
        """Return messages about what looks like a mistake."""
        return []
