"""Wide and deep (Cheng et al. 2016): a linear model of all there is, and a network beside it."""

from __future__ import annotations

from typing import Sequence

import fleetbert.compat.prepared  # noqa: F401  isort: skip
import paddle
import paddle.nn.functional as F
from paddle import nn

from fleetbert import config as schema
from fleetbert.data import fields
from fleetbert.tasks.collect import Arrays


class WideDeep(nn.Layer):  # type: ignore[misc]  # Paddle has no types
    """The logit of a click, from numbers and from the rows of a table that lies elsewhere.

    A row of the table: the category's weight in the linear model, then its embedding.
    """

    def __init__(self, numbers: int, categories: int, embedding_size: int, layers: Sequence[int]):
        super().__init__()
        self.wide = nn.Linear(numbers, 1)
        widths = [numbers + categories * embedding_size, *layers]
        deep: list[nn.Layer] = []
        for before, after in zip(widths, widths[1:]):
            deep += [nn.Linear(before, after), nn.ReLU()]
        self.deep = nn.Sequential(*deep, nn.Linear(widths[-1], 1))

    def forward(
        self, numbers: paddle.Tensor, rows: paddle.Tensor, places: paddle.Tensor | None = None
    ) -> paddle.Tensor:
        """float32 (batch,). numbers (batch, numbers); rows (ids, 1 + embedding_size); places
        (batch, categories), int64, which of the rows is a category's. Without places rows are
        (batch, categories, 1 + embedding_size), those of the categories."""
        chosen = rows if places is None else F.embedding(places, rows)
        wide = chosen[:, :, 0].sum(axis=1) + self.wide(numbers).flatten()
        embedded = chosen[:, :, 1:].flatten(1)
        deep = self.deep(paddle.concat([embedded, numbers], axis=1))
        return wide + deep.flatten()


def build(job: schema.Config) -> WideDeep:
    """The network of a job."""
    shape = job.wide_deep
    return WideDeep(2 * fields.NUMBERS, fields.CATEGORIES, shape.embedding_size, shape.deep_layers)


def loss(model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
    """float32 scalar: the sum over the rows, each with its `weight`."""
    logits = model(**arrays["inputs"])
    losses = F.binary_cross_entropy_with_logits(logits, arrays["labels"], reduction="none")
    return (losses * arrays["weight"]).sum()
