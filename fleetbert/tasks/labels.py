"""How a table is read and becomes targets: what every task on texts has of it."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Collection, Sequence

import numpy as np

from fleetbert import config as schema
from fleetbert.core.task_names import Shape
from fleetbert.data import labels as labels_of
from fleetbert.data import read
from fleetbert.data.split import Split, with_targets
from fleetbert.data.tokenizers import Tokenizer
from fleetbert.tasks.collect import Labelled


class Labels:
    """A label for each text or pair of texts."""

    collects: ClassVar[type[Labelled]] = Labelled  # what makes a step's arrays

    def __init__(self, shape: Shape):
        self.shape = shape

    def table_format(
        self, path: str | Path, columns: schema.Columns = read.USUAL, labelled: bool | None = None
    ) -> read.Format:
        """How texts are read; labelled: whether each needs a label (None: as training does)."""
        labelled = self.shape.labelled if labelled is None else labelled
        return read.table_format(
            path, pair=self.shape.pair, labelled=labelled, columns=columns, label=self.shape.label
        )

    def input_format(self, path: str | Path, columns: schema.Columns) -> read.Format | None:
        """How what is asked of a model is read; None: the first line tells."""
        suffix = Path(path).suffix.lower()
        if suffix in read.COLUMN_SUFFIXES and Path(path).is_file():  # and no pipe
            return read.table_format(path, pair=self.shape.pair, labelled=False, columns=columns)
        if suffix in read.TAG_SUFFIXES:
            return read.table_format(path, pair=False, labelled=False, label="spans")
        return None

    def texts(self, examples: Sequence[read.Example]) -> tuple[list[str], list[str] | None]:
        """What the network is asked for examples: texts, and as many second ones where it takes
        pairs. `Evaluator.per_example` puts together what it gives."""
        texts_b = [example.text_b or "" for example in examples] if self.shape.pair else None
        return [example.text_a for example in examples], texts_b

    def labels_of(self, written: Sequence[str]) -> list[str]:
        """The labels of a model that learns from texts with these written labels, each of which is
        there once."""
        return labels_of.in_order(written)

    def check_labels(self, labels: Sequence[str]) -> None:
        """UserError for labels of training texts that nothing can be learned from."""

    def unknown(self, written: str, labels: Collection[str]) -> str | None:
        """A label in a written one that is not among `labels`; None if there is none."""
        return next((name for name in self.labels_of([written]) if name not in labels), None)

    def targets(self, written: Sequence[str], labels: Sequence[str]) -> np.ndarray:
        """What written labels ask of the outputs, [written, ...]: here int64, the numbers of
        labels; -1 for an unknown one."""
        places = {label: number for number, label in enumerate(labels)}
        return np.array([places.get(label, -1) for label in written], np.int64)

    def with_targets(self, split: Split, written: Sequence[str], labels: Sequence[str]) -> Split:
        """The split with targets for the `written` labels; UserError with the line of a label
        that is unknown."""
        if not self.shape.labelled:
            return split
        known = frozenset(labels)
        unknown = [self.unknown(label, known) for label in written]
        split = with_targets(split, written, labels, self.targets(written, labels), unknown)
        self.check_targets(split.name, split.labels)
        return split

    def check_targets(self, name: str, targets: np.ndarray) -> None:
        """UserError where the table `name` with these targets has nothing to tell or to learn."""

    def alike(self, truth: np.ndarray) -> str:
        """What all texts of a table with these targets have in common, so that answers cannot be
        told apart by it; "" where they differ."""
        same = len(truth) > 0 and bool((truth == truth[:1]).all())
        return "all texts have the same label" if same else ""

    def groups(self, split: Split) -> np.ndarray | None:
        """Of each text a number that it shares with those that only tell something together, int64
        [texts]; None where each tells something by itself."""
        return None

    def counts(self, targets: np.ndarray, labels: Sequence[str]) -> np.ndarray:
        """Texts of each label, int64 [labels]."""
        return np.bincount(targets, minlength=len(labels))

    def class_counts(self, split: Split, labels: Sequence[str]) -> np.ndarray:
        """Of each label how often the loss asks for it, int64 [labels]."""
        return self.counts(split.labels, labels)

    def describe(self, targets: np.ndarray, labels: Sequence[str]) -> str | None:
        """What training texts ask for, as a line for the log."""
        return labels_of.describe(labels, self.counts(targets, labels)) if labels else None

    def doubts(self, targets: np.ndarray, labels: Sequence[str]) -> list[str]:
        """What of it looks like a mistake."""
        return labels_of.warnings(labels, self.counts(targets, labels)) if labels else []

    def collector(self, split: Split, job: schema.Config, tokenizer: Tokenizer) -> Labelled:
        return self.collects(split, job, tokenizer)
