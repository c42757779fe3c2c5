"""A vector for each text. Two texts are compared by the cosine of theirs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np

from fleetbert.data import read
from fleetbert.errors import UserError
from fleetbert.tasks import metrics
from fleetbert.tasks.regression import OfNumbers
from fleetbert.tasks.task import Metrics, Task, Tensor, Values

SHOWN = 4  # numbers of a vector, where a person reads it


class VectorAnswer(NamedTuple):
    """The vector, float32 [width], of length 1: the product of two is their cosine."""

    vector: np.ndarray
    exit_layer: int | None = None

    def as_json(self) -> dict[str, object]:
        return {"vector": [round(number, 6) for number in self.vector.tolist()]}


class Embedding(OfNumbers):
    """A question is one text. A labelled example is two, and a number that their cosine should
    follow; `per_example` gives the cosines."""

    name = "embedding"
    head = "embedding"
    gate_metric = "spearman"
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
        """Without `labelled` the second text of a line is taken where there is one."""
        labelled = self.labelled if labelled is None else labelled
        pair = True if labelled else None
        return read.table_format(
            path, pair=pair, labelled=labelled, quoting=quoting, label=self.label
        )

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

    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        return self.per_example(outputs)[:, 0]

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


EMBEDDING = Embedding()
