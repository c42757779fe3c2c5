"""A vector for each text. Two texts are compared by the cosine of theirs."""

from __future__ import annotations

import copy
from functools import cached_property
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np

from fleetbert.core.errors import UserError
from fleetbert.data import batching, read
from fleetbert.data.split import Split
from fleetbert.tasks import metrics
from fleetbert.tasks.collect import Arrays, Several
from fleetbert.tasks.regression import OfNumbers
from fleetbert.tasks.task import Criterion, Metrics, Part, Task, Tensor, Values, together

BINS = 20
SHOWN = 4  # numbers of a vector, where a person reads it


class VectorAnswer(NamedTuple):
    """The vector, float32 [width], of length 1: the product of two is their cosine."""

    vector: np.ndarray
    exit_layer: int | None = None

    def as_json(self) -> dict[str, object]:
        return {"vector": [round(number, 6) for number in self.vector.tolist()]}


class Together(Several):
    """The texts of an example follow each other in the split. Its arrays besides: `groups` int64
    [examples], the same where the first text is the same; `has_numbers`, `temperature`."""

    @cached_property
    def texts(self) -> int:
        """Of an example."""
        return 1 + int(self.split.labels[:, 1].max())

    @cached_property
    def lengths(self) -> np.ndarray:
        longest: np.ndarray = self.split.encodings.lengths.reshape(-1, self.texts).max(1)
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
            said = "has no text_b: a vector is learned from texts that belong together"
            raise UserError(f"{self.split.name}:{self.lines[0]}: {said}")
        if without.any():
            number = int(without.argmax())
            said = "has no label, where others have: give each line a number, or none"
        else:
            number = int(wrong.argmax())
            said = f"has the number {numbers[number]:g}, and a cosine is from -1 to 1: divide all"
        raise UserError(f"{self.split.name}:{self.lines[number]}: {said}")

    def texts_of(self, part: np.ndarray) -> np.ndarray:
        return part[:, None] * self.texts + np.arange(self.texts)

    def arrays(
        self, part: np.ndarray, weight: np.ndarray, step: np.ndarray, epoch: int, packed: bool
    ) -> Arrays:
        found = super().arrays(part, weight, step, epoch, packed)
        numbers: dict[bytes, int] = {}
        firsts = [np.asarray(self.split.encodings.ids[n]).tobytes() for n in part * self.texts]
        return {
            **found,
            "groups": np.array([numbers.setdefault(first, len(numbers)) for first in firsts]),
            "has_numbers": not np.isnan(found["labels"]).any(),
            "temperature": self.job.task.temperature,
        }


class Embedding(OfNumbers):
    """A question is one text. A labelled example is two, and a number that their cosine should
    follow; `per_example` gives the cosines. Training takes pairs or triplets without a number too.

    The targets of a split are float32 [texts, 2]: the number of the text's example, NaN if it has
    none, and the text's place in it.
    """

    name = "embedding"
    head = "embedding"
    loss = f"{__name__}.loss"
    gate_metric = "spearman"
    pooled = True
    takes_metrics = False
    collects = Together
    tells = "a vector"
    width: int | None = None

    def of_width(self, width: int | None) -> Task:
        if width is None:
            raise UserError(f"a bundle of the task {self.name} says no width: export it again")
        known = copy.copy(self)
        known.width = width
        return known

    def table_format(
        self, path: str | Path, quoting: read.Quoting = "auto", labelled: bool | None = None
    ) -> read.Format:
        """Without `labelled` the second text of a line is taken where there is one; for training
        each text is an example, and a label is taken where there is one."""
        form = read.table_format(
            path,
            pair=True if labelled else None,
            labelled=bool(labelled),
            quoting=quoting,
            label=self.label,
        )
        return form if labelled is not None else form._replace(labelled=True, apart=True)

    def targets(self, written: Sequence[str], labels: Sequence[str]) -> np.ndarray:
        return np.array([float(one or "nan") for one in written], np.float32)

    def with_targets(self, split: Split, own: Sequence[str], labels: Sequence[str]) -> Split:
        """UserError unless all lines have as many texts."""
        split = super().with_targets(split, own, labels)
        starts = np.flatnonzero(np.diff(split.lines, prepend=-1))
        counts = np.diff(starts, append=len(split.lines))
        if (counts != counts[0]).any():
            number = int((counts != counts[0]).argmax())
            raise UserError(
                f"{split.name}:{split.lines[starts[number]]}: has {counts[number]} texts, and the "
                f"first line {counts[0]}; give all lines as many"
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

    def per_example(self, outputs: np.ndarray) -> np.ndarray:
        """Cosines float32 [examples, 1]."""
        cosines: np.ndarray = (outputs[::2] * outputs[1::2]).sum(1, keepdims=True)
        return cosines

    def outputs(self, labels: Sequence[str]) -> int:
        assert self.width is not None
        return self.width

    def evaluate(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Metrics:
        """Spearman's and Pearson's correlation of the cosines with the numbers."""
        found = metrics.regression(truth, outputs[:, 0])
        return {name: found[name] for name in ("n", "spearman", "pearson")}

    def evaluate_parts(
        self, parts: Sequence[Part], truth: np.ndarray, labels: Sequence[str]
    ) -> Metrics:
        """Correlations of the cosines with the numbers; of pairs without numbers MRR@10: how near
        a first text is to its own second one, among all of the table."""
        vectors = together(parts, self.room(len(truth), labels))
        texts = 1 + int(truth[:, 1].max())
        numbers, first, second = truth[::texts, 0], vectors[::texts], vectors[1::texts]
        if texts < 2:
            raise UserError("data.dev: has single texts; give text_a and text_b")
        if np.isnan(numbers).any():
            found = {"n": len(first), "mrr_10": metrics.mrr(first, second)}
            return {**found, "similarities": similarities(first, second)}
        cosines = (first * second).sum(1, keepdims=True)
        found = self.evaluate(numbers, cosines, labels)
        return {**found, **self.plots(numbers, cosines, labels)}

    def criterion(self, wanted: str, metrics: Metrics) -> Criterion:
        known = [name for name in (wanted, self.gate_metric, "mrr_10") if name in metrics]
        return Criterion(known[0], False)

    def to_answers(
        self, labels: Sequence[str], outputs: np.ndarray, exit_layers: np.ndarray | None
    ) -> list[VectorAnswer]:
        return [VectorAnswer(vector) for vector in outputs]

    def in_words(self, told: Mapping[str, Any]) -> str:
        vector = told["vector"]
        shown = ", ".join(f"{number:.4f}" for number in vector[:SHOWN])
        return f"[{shown}, ...], {len(vector)} numbers"

    def together_in_words(self, told: Sequence[Mapping[str, Any]]) -> list[str]:
        """The cosine of each text with the first."""
        vectors = np.array([one["vector"] for one in told])
        cosines = (vectors[1:] @ vectors[0]).tolist() if len(told) > 1 else []
        return [f"similarity of 1 and {n}: {cosine:.4f}" for n, cosine in enumerate(cosines, 2)]

    def tell(self, labels: Sequence[str], outputs: np.ndarray) -> list[Values]:
        return [outputs]

    def tensors(self, labels: Sequence[str]) -> list[Tensor]:
        width = self.outputs(labels)
        return [Tensor("embedding", "FP32", (-1, width)), Tensor("exit_layer", "INT32", (-1,))]


def similarities(first: np.ndarray, second: np.ndarray) -> Metrics:
    """What a report draws of pairs: bounds of BINS, and the cosines in each, `own` of the pairs and
    `others` of first texts with the second one of the next pair."""
    cosines = [(first * one).sum(1) for one in (second, np.roll(second, 1, axis=0))]
    bounds = np.histogram_bin_edges(np.concatenate(cosines), BINS)
    own, others = (np.histogram(one, bounds)[0].tolist() for one in cosines)
    return {"bounds": bounds.tolist(), "own": own, "others": others}


EMBEDDING = Embedding()
