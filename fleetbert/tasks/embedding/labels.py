"""Pairs of texts with a number that their cosine should follow; pairs and triplets without one."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Sequence

import numpy as np

from fleetbert.config import Columns
from fleetbert.core.errors import UserError
from fleetbert.data import batching, read
from fleetbert.data.split import Split
from fleetbert.tasks.collect import Arrays, Several
from fleetbert.tasks.regression.labels import Numbers


class Together(Several):
    """The texts of an example follow each other in the split. Its arrays besides: `groups` int64
    [examples], the same where the first text is the same; `has_numbers`, `temperature`."""

    @cached_property
    def texts(self) -> int:
        """Of an example."""
        return 1 + int(self.split.labels[:, 1].max())

    @cached_property
    def lengths(self) -> np.ndarray:
        longest: np.ndarray = self.text_lengths.reshape(-1, self.texts).max(1)
        return longest

    @property
    def lines(self) -> np.ndarray:
        return self.split.lines[:: self.texts]

    def plan(self, epoch: int) -> batching.Plan:
        self._check()
        return self.plan_several(epoch, self.texts)

    def _check(self) -> None:
        numbers = self.split.labels[:: self.texts, 0]
        without = np.isnan(numbers)
        wrong = np.abs(np.nan_to_num(numbers)) > 1
        if without.all() or not (without.any() or wrong.any()):
            if self.texts > 1:
                return
            problem = "has no text_b: a vector is learned from texts that belong together"
            raise UserError(f"{self.split.name}:{self.lines[0]}: {problem}")
        if without.any():
            number = int(without.argmax())
            problem = "has no label, where others have: give each line a number, or none"
        else:
            number = int(wrong.argmax())
            problem = (
                f"has the number {numbers[number]:g}, and a cosine is from -1 to 1: divide all"
            )
        raise UserError(f"{self.split.name}:{self.lines[number]}: {problem}")

    def texts_of(self, part: np.ndarray) -> np.ndarray:
        return part[:, None] * self.texts + np.arange(self.texts)

    def arrays(
        self, part: np.ndarray, weight: np.ndarray, step: np.ndarray, epoch: int, packed: bool
    ) -> Arrays:
        arrays = super().arrays(part, weight, step, epoch, packed)
        numbers: dict[bytes, int] = {}
        firsts = [np.asarray(self.split.encodings.ids[n]).tobytes() for n in part * self.texts]
        return {
            **arrays,
            "groups": np.array([numbers.setdefault(first, len(numbers)) for first in firsts]),
            "has_numbers": not np.isnan(arrays["labels"]).any(),
            "temperature": self.job.task.temperature,
        }


class Similar(Numbers):
    """A question is one text. A labelled example is two, and a number that their cosine should
    follow. Training takes pairs or triplets without a number too.

    The targets of a split are float32 [texts, 2]: the number of the text's example, NaN if it has
    none, and the text's place in it.
    """

    collects = Together

    def table_format(
        self, path: str | Path, columns: Columns = read.USUAL, labelled: bool | None = None
    ) -> read.Format:
        """Without `labelled` the second text of a line is taken where there is one; for training
        each text is an example, and a label is taken where there is one."""
        form = read.table_format(
            path,
            pair=True if labelled else None,
            labelled=bool(labelled),
            columns=columns,
            label=self.shape.label,
        )
        return form if labelled is not None else form._replace(labelled=True, apart=True)

    def targets(self, written: Sequence[str], labels: Sequence[str]) -> np.ndarray:
        return np.array([float(word or "nan") for word in written], np.float32)

    def with_targets(self, split: Split, written: Sequence[str], labels: Sequence[str]) -> Split:
        """UserError unless all lines have as many texts."""
        split = super().with_targets(split, written, labels)
        starts = np.flatnonzero(np.diff(split.lines, prepend=-1))
        counts = np.diff(starts, append=len(split.lines))
        if (counts != counts[0]).any():
            number = int((counts != counts[0]).argmax())
            raise UserError(
                f"{split.name}:{split.lines[starts[number]]}: has {counts[number]} texts, and the "
                f"first line {counts[0]}; give all lines the same number"
            )
        places = np.arange(len(split.lines)) % counts[0]
        return split._replace(labels=np.stack([split.labels, places], 1).astype(np.float32))

    def groups(self, split: Split) -> np.ndarray:
        """The texts of a line."""
        return split.lines

    def describe(self, targets: np.ndarray, labels: Sequence[str]) -> str:
        texts = 1 + int(targets[:, 1].max())
        what = {2: "pairs", 3: "triplets"}.get(texts, "single texts")
        numbers = targets[::texts, 0]
        if np.isnan(numbers).any():
            return f"{len(numbers)} {what} without numbers"
        return f"{len(numbers)} {what}, {super().describe(numbers, labels)}"

    def doubts(self, targets: np.ndarray, labels: Sequence[str]) -> list[str]:
        numbers = targets[:, 0]
        return [] if np.isnan(numbers).any() else super().doubts(numbers, labels)

    def texts(self, examples: Sequence[read.Example]) -> tuple[list[str], None]:
        """Both texts of each example, one after the other."""
        both = (text for example in examples for text in (example.text_a, example.text_b))
        return [text for text in both if text is not None], None
