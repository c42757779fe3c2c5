"""A step's texts as the arrays that a task computes with, in NumPy: another process can do it."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Dict

import numpy as np

from fleetbert import config as schema
from fleetbert.data import batching, cache, masking
from fleetbert.data.split import Split
from fleetbert.data.tokenizers.wordpiece import Tokenizer

Arrays = Dict[str, Any]


class Labelled:
    """Texts or pairs with a label each.

    Its arrays: `inputs` (of the network, by name), `labels`, `weight`, and `texts`, which of the
    split they are; `n_texts`, `n_tokens`.
    """

    def __init__(self, split: Split, job: schema.Config, tokenizer: Tokenizer):
        self.split, self.job, self.tokenizer = split, job, tokenizer

    @cached_property
    def lengths(self) -> np.ndarray:
        return self.split.encodings.lengths

    def __getstate__(self) -> dict[str, Any]:
        """Without a split that is cached: another process maps it itself."""
        split = self.split
        place = None if split.folder is None else (split.name, split.folder)
        state = {"job": self.job, "tokenizer": self.tokenizer, "place": place}
        return state if place else {**state, "split": split}

    def __setstate__(self, state: dict[str, Any]) -> None:
        place = state.pop("place")
        self.__dict__.update(state)
        if place:
            self.split, _ = cache.load(*place)

    def plan(self, epoch: int) -> batching.Plan:
        """The texts of each optimizer step of an epoch."""
        data = self.job.data
        return batching.plan_epoch(
            self.lengths,
            batching=data.batching,
            batch_size=data.batch_size,
            batch_tokens=data.batch_tokens,
            max_length=data.max_length,
            seed=self.job.trainer.seed,
            epoch=epoch,
        )

    def micro_batches(
        self, indices: np.ndarray, epoch: int, parts: int, mine: slice
    ) -> list[Arrays]:
        """A rank's share (`mine`) of a step's texts, which are cut into `parts`. The weights in
        it make the losses of all parts add up to the step's mean."""
        shares = batching.share(indices, self.lengths, parts)
        packed = self.job.data.batching == "pack"
        return [self.arrays(part, weight, indices, epoch, packed) for part, weight in shares[mine]]

    def arrays(
        self, part: np.ndarray, weight: np.ndarray, step: np.ndarray, epoch: int, packed: bool
    ) -> Arrays:
        batch = self.collate(self.split.encodings.ids, part, packed)
        return {
            "inputs": _inputs(batch, "first"),
            "labels": self.split.labels[part][batch.order],
            "weight": weight[batch.order] / np.float32(len(step)),
            "texts": part[batch.order],
            "n_texts": int(np.count_nonzero(weight)),
            "n_tokens": batch.n_tokens,
        }

    def collate(self, ids: Any, part: np.ndarray, packed: bool) -> batching.Batch:
        return batching.collate(
            self.split.encodings._replace(ids=ids),
            part,
            packed=packed,
            max_length=self.job.data.max_length,
            pad_id=self.tokenizer.pad_id,
        )


class Masked(Labelled):
    """Texts with some words hidden. `labels` and `weight` are of the hidden words, whose places
    are `inputs["positions"]`."""

    def arrays(
        self, part: np.ndarray, weight: np.ndarray, step: np.ndarray, epoch: int, packed: bool
    ) -> Arrays:
        masked = {int(i): self.mask(int(i), epoch) for i in step}
        batch = self.collate({i: ids for i, (ids, _, _) in masked.items()}, part, packed)
        texts = part[batch.order]
        positions = [masked[int(i)][1] + start for i, start in zip(texts, batch.first)]
        words = [masked[int(i)][2] for i in texts]
        weights_of = [np.full(len(w), weight[n], np.float32) for n, w in zip(batch.order, words)]
        if not any(map(len, words)):  # Paddle takes no empty tensors: one word that counts nothing
            positions, words = [batch.first[:1]], [np.zeros(1, np.int64)]
            weights_of = [np.zeros(1, np.float32)]
        total = max(1, sum(len(found) for _, found, _ in masked.values()))
        inputs = _inputs(batch, None)
        inputs["positions"] = np.concatenate(positions).astype(np.int64)
        return {
            "inputs": inputs,
            "labels": np.concatenate(words).astype(np.int64),
            "weight": np.concatenate(weights_of) / np.float32(total),
            "n_texts": int(np.count_nonzero(weight)),
            "n_tokens": batch.n_tokens,
        }

    def mask(self, text: int, epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(ids, positions, words) of a text: a function of seed, epoch and text alone."""
        rng = np.random.default_rng([self.job.trainer.seed, epoch + 1, text])
        return masking.mask_tokens(
            self.split.encodings.ids[text],
            self.tokenizer,
            rng,
            probability=self.job.task.mask_probability,
            whole_word=self.job.task.whole_word,
        )


def _inputs(batch: batching.Batch, first: str | None) -> dict[str, np.ndarray]:
    names = ["input_ids", "token_type_ids"]
    if batch.segments is not None:
        names += ["position_ids", "segments"] + ([first] if first else [])
    return {name: getattr(batch, name) for name in names}
