"""Spans of a text, each of a kind, as tags of words."""

from __future__ import annotations

import json
from typing import Collection, Sequence

import numpy as np

from fleetbert.core.errors import UserError
from fleetbert.data import labels as labels_of
from fleetbert.data.split import Split
from fleetbert.tasks.collect import Arrays, Labelled, network_inputs
from fleetbert.tasks.labels import Labels
from fleetbert.tasks.token_classification.scheme import labels_of_kinds, scheme_of, tags_of


class Collector(Labelled):
    """Texts with tags. `labels` and `weight` [rows, length] are of tokens; a weight of 0 is of one
    that nothing is asked of."""

    def arrays(
        self, part: np.ndarray, weight: np.ndarray, step: np.ndarray, epoch: int, packed: bool
    ) -> Arrays:
        batch, tokens = self.collate_tokens(part, packed, epoch)
        labels = np.zeros(batch.input_ids.shape, np.int64)
        weights = np.zeros(batch.input_ids.shape, np.float32)
        for text, of_text, at in zip(part, weight, tokens):
            places, tags = self.targets(int(text))
            places = at[places]
            read = places >= 0
            labels.reshape(-1)[places[read]] = tags[read]
            weights.reshape(-1)[places[read]] = of_text
        total = max(1, sum(self.asked_tokens(int(text)) * self.read_shares[text] for text in step))
        return {
            "inputs": network_inputs(batch),
            "labels": labels,
            "weight": weights / np.float32(total),
            "texts": part,
            "words": [self.words[text] for text in part],
            "tokens": tokens,
            "n_texts": int(np.count_nonzero(weight)),
            "n_tokens": batch.n_tokens,
        }

    def asked_tokens(self, text: int) -> int:
        """How many tokens something is asked of."""
        words = self.words[text]
        if self.job.task.pieces == "first" or not len(words):
            return len(words)
        return int(self.split.encodings.lengths[text]) - 1 - int(words[0, 0])

    def targets(self, text: int) -> tuple[np.ndarray, np.ndarray]:
        """The tokens, int64, that something is asked of, and their labels."""
        words = self.words[text]
        tags = tags_of(words, self.split.labels[text])
        places = words[:, 0].astype(np.int64)
        if self.job.task.pieces == "first" or not len(words):
            return places, tags
        # All but the special token at the end; what goes on in a word goes on in its span.
        every = np.arange(places[0], self.split.encodings.lengths[text] - 1)
        word = np.searchsorted(places, every, "right") - 1
        return every, np.where(places[word] == every, tags[word], (tags[word] + 1) // 2 * 2)


class Spans(Labels):
    collects = Collector

    def labels_of(self, written: Sequence[str]) -> list[str]:
        return labels_of_kinds(
            sorted({kind for spans in written for _, _, kind in json.loads(spans)})
        )

    def check_labels(self, labels: Sequence[str]) -> None:
        if len(labels) < 2:
            raise UserError("data.train: no text of it has a span; there is nothing to learn")
        kinds = dict.fromkeys(label.partition("-")[2] for label in labels if "-" in label)
        expected = labels_of_kinds(kinds)
        if list(labels) != expected:
            raise UserError(
                f"labels: of spans they are O, then B- and I- of each kind: {', '.join(expected)}; "
                "give them in this order, or leave labels out"
            )

    def unknown(self, written: str, labels: Collection[str]) -> str | None:
        kinds = {label.partition("-")[2] for label in labels}
        names = (kind for _, _, kind in json.loads(written))
        return next((f"B-{kind}" for kind in names if kind not in kinds), None)

    def targets(self, written: Sequence[str], labels: Sequence[str]) -> np.ndarray:
        """An object array [written] of int64 [spans, 3]: characters, and the kind's number."""
        numbers = {kind: number for number, kind in enumerate(scheme_of(labels).kinds)}
        targets = np.empty(len(written), object)
        for place, text in enumerate(written):
            spans = [(begin, end, numbers.get(kind, -1)) for begin, end, kind in json.loads(text)]
            targets[place] = np.array(spans, np.int64).reshape(-1, 3)
        return targets

    def alike(self, truth: np.ndarray) -> str:
        return "" if any(len(spans) for spans in truth) else "no text has a span"

    def kinds(self, targets: np.ndarray, labels: Sequence[str]) -> np.ndarray:
        """Spans of each kind, int64 [kinds]."""
        kinds = [spans[:, 2] for spans in targets]
        every = np.concatenate([*kinds, np.zeros(0, np.int64)])
        return np.bincount(every[every >= 0], minlength=len(scheme_of(labels).kinds))

    def counts(self, targets: np.ndarray, labels: Sequence[str]) -> np.ndarray:
        """Spans of each label's kind; of O, texts."""
        kind = scheme_of(labels).kind
        counts = np.append(self.kinds(targets, labels), len(targets))
        of_labels: np.ndarray = counts[kind]
        return of_labels

    def class_counts(self, split: Split, labels: Sequence[str]) -> np.ndarray:
        """Words."""
        assert split.encodings.words is not None
        tags = [tags_of(*of_text) for of_text in zip(split.encodings.words, split.labels)]
        words = np.concatenate([*tags, np.zeros(0, np.int64)])
        return np.bincount(scheme_of(labels).tags[words], minlength=len(labels))

    def describe(self, targets: np.ndarray, labels: Sequence[str]) -> str:
        counts = self.kinds(targets, labels)
        text = labels_of.describe(scheme_of(labels).kinds, counts).replace(" labels:", " kinds:", 1)
        return f"{counts.sum()} spans of {text}"

    def doubts(self, targets: np.ndarray, labels: Sequence[str]) -> list[str]:
        return labels_of.warnings(scheme_of(labels).kinds, self.kinds(targets, labels))
