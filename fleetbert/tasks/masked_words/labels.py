"""Texts with some words hidden."""

from __future__ import annotations

from pathlib import Path
from typing import Sequence, cast

import numpy as np

from fleetbert.config import Columns
from fleetbert.data import masking, read
from fleetbert.tasks.collect import Arrays, Labelled, network_inputs
from fleetbert.tasks.labels import Labels


class Masked(Labelled):
    """Texts with some words hidden. `labels` and `weight` are of the hidden words, whose places
    are `inputs["positions"]`."""

    def arrays(
        self, part: np.ndarray, weight: np.ndarray, step: np.ndarray, epoch: int, packed: bool
    ) -> Arrays:
        masked = {int(i): self.mask(int(i), epoch) for i in step}
        # They are looked up by number only.
        ids = cast("Sequence[np.ndarray]", {i: ids for i, (ids, _, _) in masked.items()})
        batch, tokens = self.collate_tokens(part, packed, epoch, ids)
        positions, words, weights_of = [], [], []
        for text, of_text, at in zip(part.tolist(), weight, tokens):
            _, hidden, of_hidden = masked[text]
            read = at[hidden] >= 0
            positions.append(at[hidden[read]])
            words.append(of_hidden[read])
            weights_of.append(np.full(int(read.sum()), of_text, np.float32))
        if not any(map(len, words)):  # Paddle takes no empty tensors: one word that counts nothing
            positions, words = [batch.first[:1]], [np.zeros(1, np.int64)]
            weights_of = [np.zeros(1, np.float32)]
        shares = self.read_shares
        total = max(1, sum(len(hidden) * shares[text] for text, (_, hidden, _) in masked.items()))
        inputs = network_inputs(batch)
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


class HiddenWords(Labels):
    """The words themselves: texts have no labels."""

    collects = Masked

    def table_format(
        self, path: str | Path, columns: Columns = read.USUAL, labelled: bool | None = None
    ) -> read.Format:
        return read.texts_format(path, columns)
