"""A step's texts as the arrays that a task computes with, in NumPy: another process can do it."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Dict, Protocol, Sequence

import numpy as np

from fleetbert import config as schema
from fleetbert.data import batching, windows
from fleetbert.data.split import Split
from fleetbert.data.tokenizers import Tokenizer
from fleetbert.data.windows import Layout

# A step's arrays by name, see `Labelled`; what a task has besides is its own affair.
Arrays = Dict[str, Any]


class Collector(Protocol):
    """What makes a step's arrays. It can be sent to another process."""

    def plan(self, epoch: int) -> batching.Plan:
        """The examples of each optimizer step of an epoch, the same whenever it is called."""

    def micro_batches(
        self, indices: np.ndarray, epoch: int, parts: int, shard: slice
    ) -> list[Arrays]:
        """A rank's `shard` of a step's examples, which are cut into `parts`, in each of which a
        rank needs something: the losses of all parts add up to the step's mean."""


class Labelled:
    """Texts or pairs with a label each.

    Its arrays: `inputs` (of the network, by name), `labels`, `weight`, and `texts`, which of the
    split they are; `n_texts`, `n_tokens`.
    """

    def __init__(self, split: Split, job: schema.Config, tokenizer: Tokenizer):
        self.split, self.job, self.tokenizer = split, job, tokenizer

    @cached_property
    def text_lengths(self) -> np.ndarray:
        """Tokens of the rows that a step has of each text, int [texts]."""
        return windows.row_tokens(self.split.encodings, self.job.data.train_windows)

    @cached_property
    def read_shares(self) -> np.ndarray:
        """Which share of each text's windows a step has, float [texts]."""
        shares: np.ndarray = self.text_lengths / windows.row_tokens(self.split.encodings)
        return shares

    @cached_property
    def lengths(self) -> np.ndarray:
        """Of each example."""
        return self.text_lengths

    @property
    def lines(self) -> np.ndarray:
        """Where each example stands in its file."""
        return self.split.lines

    @property
    def words(self) -> Sequence[np.ndarray]:
        """Of each text, where the task asks for them: see `Encodings.words`."""
        assert self.split.encodings.words is not None
        return self.split.encodings.words

    def __getstate__(self) -> Arrays:
        """Without a split that is cached: another process maps it itself."""
        split = self.split
        place = None if split.folder is None else (split.name, split.folder)
        state = {"job": self.job, "tokenizer": self.tokenizer, "place": place}
        # What a task has made of the labels is not in the cache.
        return {**state, "labels": split.labels} if place else {**state, "split": split}

    def __setstate__(self, state: Arrays) -> None:
        place, labels = state.pop("place"), state.pop("labels", None)
        self.__dict__.update(state)
        if place:
            from fleetbert.data import cache  # a server has tasks, but no pyarrow

            split, _ = cache.load(*place)
            self.split = split._replace(labels=labels)

    def plan(self, epoch: int) -> batching.Plan:
        return self.plan_of(epoch, self.job.data.batch_tokens)

    def plan_of(self, epoch: int, batch_tokens: int | None) -> batching.Plan:
        data = self.job.data
        return batching.plan_epoch(
            self.lengths,
            batching=data.batching,
            batch_size=data.batch_size,
            batch_tokens=batch_tokens,
            max_length=max(data.max_length, int(np.max(self.lengths, initial=0))),
            seed=self.job.trainer.seed,
            epoch=epoch,
        )

    def micro_batches(
        self, indices: np.ndarray, epoch: int, parts: int, shard: slice
    ) -> list[Arrays]:
        shares = batching.share(indices, self.lengths, parts)
        packed = self.job.data.batching == "pack"
        return [self.arrays(part, weight, indices, epoch, packed) for part, weight in shares[shard]]

    def arrays(
        self, part: np.ndarray, weight: np.ndarray, step: np.ndarray, epoch: int, packed: bool
    ) -> Arrays:
        inputs, order, n_tokens = self.inputs(part, epoch, packed)
        return {
            "inputs": inputs,
            "labels": self.split.labels[part][order],
            "weight": weight[order] / np.float32(len(step)),
            "texts": part[order],
            "n_texts": int(np.count_nonzero(weight)),
            "n_tokens": n_tokens,
        }

    def inputs(
        self, texts: np.ndarray, epoch: int, packed: bool
    ) -> tuple[dict[str, np.ndarray], np.ndarray, int]:
        """What a network that answers texts takes of these, by name; which of them each of its
        outputs is of, int64; and how many tokens that are."""
        batch, layout = self.collate(texts, packed, epoch)
        inputs = network_inputs(batch, first=True)
        if layout is None:
            return inputs, batch.order, batch.n_tokens
        return {**inputs, **pooled(batch, layout)}, np.arange(len(texts)), batch.n_tokens

    def whole(self, part: np.ndarray) -> Arrays:
        """Of texts of an evaluation, which count alike."""
        return self.arrays(part, np.ones(len(part), np.float32), part, -1, False)

    def collate_tokens(
        self,
        texts: np.ndarray,
        packed: bool,
        epoch: int,
        ids: Sequence[np.ndarray] | None = None,
    ) -> tuple[batching.Batch, list[np.ndarray]]:
        """`collate`, and of each text int64 [own tokens], where its tokens stand in the flat
        arrays; -1 for one in a window that is not drawn."""
        batch, layout = self.collate(texts, packed, epoch, ids)
        starts = batch.first[np.argsort(batch.order)]
        if layout is not None:
            return batch, layout.tokens(starts)
        lengths = self.split.encodings.lengths[texts].tolist()
        return batch, [start + np.arange(n) for start, n in zip(starts.tolist(), lengths)]

    def collate(
        self,
        texts: np.ndarray,
        packed: bool,
        epoch: int,
        ids: Sequence[np.ndarray] | None = None,
    ) -> tuple[batching.Batch, Layout | None]:
        """Texts as arrays, and which rows are windows of which of them. Of an epoch's texts some
        windows are drawn. ids: in place of the texts' tokens, by their numbers."""
        encodings = self.split.encodings
        encodings = encodings if ids is None else encodings._replace(ids=ids)
        draw = None
        if epoch >= 0:
            draw = windows.Draw(self.job.data.train_windows, [self.job.trainer.seed, epoch])
        divided = windows.divide(encodings, texts, draw)
        rows, layout = (encodings, None) if divided is None else divided
        batch = batching.collate(
            rows,
            texts if layout is None else np.arange(len(layout.text)),
            packed=packed,
            max_length=self.job.data.max_length,
            pad_id=self.tokenizer.pad_id,
        )
        return batch, layout


class Several(Labelled):
    """Examples of several texts each. Its arrays besides: `places` int64 [examples, texts of one],
    which of the network's outputs they get; `labels` and `weight` are of examples."""

    def texts_of(self, part: np.ndarray) -> np.ndarray:
        """int64 [examples, texts of one]."""
        raise NotImplementedError

    def plan_several(self, epoch: int, texts: int) -> batching.Plan:
        """`data.batch_size` counts examples, `data.batch_tokens` the tokens of all their texts."""
        tokens = self.job.data.batch_tokens
        return self.plan_of(epoch, tokens and max(1, tokens // texts))

    def arrays(
        self, part: np.ndarray, weight: np.ndarray, step: np.ndarray, epoch: int, packed: bool
    ) -> Arrays:
        texts = self.texts_of(part)
        inputs, order, n_tokens = self.inputs(texts.ravel(), epoch, packed)
        return {
            "inputs": inputs,
            "places": np.argsort(order).reshape(texts.shape),
            "labels": self.split.labels[texts[:, 0], 0],
            "weight": weight / np.float32(len(step)),
            "n_texts": int(np.count_nonzero(weight)) * texts.shape[1],
            "n_tokens": n_tokens,
        }

    def whole(self, part: np.ndarray) -> Arrays:
        """Of texts, not of examples."""
        return Labelled.arrays(self, part, np.ones(len(part), np.float32), part, -1, False)


def pooled(batch: batching.Batch, layout: Layout) -> dict[str, np.ndarray]:
    """By which a network makes the outputs of a batch's windows those of their texts: `windows`
    int64 [texts, most], which outputs are of each text, the first one again where there are fewer;
    `shares` float32 [texts, most], of each in the mean, 0 of the repeated ones; none for the
    largest. A vector's share is that of its tokens."""
    counts = np.bincount(layout.text)
    place = np.arange(counts.max())
    real = place < counts[:, None]
    rows = layout.starts[:, None] + place * real
    names = {"windows": np.argsort(batch.order)[rows]}
    if layout.pool == "max":
        return names
    return {**names, "shares": np.where(real, layout.shares[rows], 0).astype(np.float32)}


def network_inputs(batch: batching.Batch, first: bool = False) -> dict[str, np.ndarray]:
    """What the network takes of a batch, by name; with `first` where each text begins."""
    names = ["input_ids", "token_type_ids"]
    if batch.segments is not None:
        names += ["position_ids", "segments"] + ["first"] * first
    return {name: getattr(batch, name) for name in names}
