"""What every kind of task on texts says of itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Dict, NamedTuple, Protocol, Sequence

import numpy as np

from fleetbert import config as schema
from fleetbert.data import read
from fleetbert.data.split import Split
from fleetbert.data.tokenizers import Tokenizer
from fleetbert.errors import UserError
from fleetbert.tasks.collect import Labelled
from fleetbert.tasks.metrics import Metrics

# What one batch of an evaluation gave, by name; sent between ranks.
Part = Dict[str, np.ndarray]


class Answer(Protocol):
    """What a user is told of one text or pair."""

    @property
    def exit_layer(self) -> int | None:
        """The layer after which the text left; None where all go through."""

    def as_json(self) -> dict[str, object]:
        """As `fleetbert predict` and the command line of a board print it."""


class Criterion(NamedTuple):
    """What decides which step is the best."""

    metric: str
    lower_is_better: bool

    def is_better(self, metrics: Metrics, former: Metrics) -> bool:
        """`former` may be empty. Of two that are equal the one with the lower loss is better."""
        if not former:
            return True
        new, old = metrics[self.metric], former[self.metric]
        if new == old and "loss" in metrics and "loss" in former:
            return bool(metrics["loss"] < former["loss"])
        return bool(new < old if self.lower_is_better else new > old)


class Tensor(NamedTuple):
    """A tensor that a server takes or tells. -1 in its shape: one for each text."""

    name: str
    datatype: str  # of the Open Inference Protocol
    shape: tuple[int, ...]


class Task(ABC):
    """One kind of answer. Instances have no state: a name is an instance."""

    name: str
    pair: bool = False  # a question is two texts
    labelled: bool = True  # training texts have labels
    answers: bool = True  # a bundle can be asked
    head: ClassVar[str]  # of the network, see `models.heads`
    collects: ClassVar[type[Labelled]] = Labelled  # what makes a step's arrays
    gate_metric: ClassVar[str]  # what compression may lose little of; higher is better

    def table_format(self, path: str | Path, quoting: read.Quoting = "auto") -> read.Format:
        """How training texts are read."""
        return read.table_format(path, pair=self.pair, labelled=self.labelled, quoting=quoting)

    def check_labels(self, labels: Sequence[str]) -> None:  # noqa: B027  most need no check
        """UserError for labels of training texts that nothing can be learned from."""

    def collector(self, split: Split, job: schema.Config, tokenizer: Tokenizer) -> Labelled:
        return self.collects(split, job, tokenizer)

    @abstractmethod
    def outputs(self, labels: Sequence[str]) -> int:
        """How many numbers the network gives for a text."""

    @abstractmethod
    def evaluate(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Metrics:
        """Metrics with `n` and `loss`; truth int64 [texts], the numbers of labels; outputs float32
        [texts, outputs]."""

    def right(self, truth: np.ndarray, outputs: np.ndarray) -> np.ndarray | None:
        """Whether each answer is right, bool [texts], where `gate_metric` is the share of those;
        None where it is another figure."""
        return None

    def evaluate_parts(
        self, parts: Sequence[Part], truth: np.ndarray, labels: Sequence[str]
    ) -> Metrics:
        """`evaluate` the outputs of all batches, which come in any order; `texts` of a part says
        which they are."""
        return self.evaluate(truth, together(parts, truth, self.outputs(labels)), labels)

    def criterion(self, wanted: str, metrics: Metrics) -> Criterion:
        """What the best step is told by, where a job wants `trainer.best_metric`."""
        for metric in (wanted, self.gate_metric):
            if metric in metrics:
                return Criterion(metric, metric == "loss")
        return Criterion("loss", True)

    @abstractmethod
    def to_answers(
        self, labels: Sequence[str], outputs: np.ndarray, exit_layers: np.ndarray | None
    ) -> Sequence[Answer]:
        """An engine's outputs float32 [texts, outputs], and int64 [texts] the layers after which
        texts left if they can → the answers."""

    @abstractmethod
    def tensors(self, labels: Sequence[str]) -> list[Tensor]:
        """What a server tells of each text, `exit_layer` last."""

    def check_answers(self, where: str) -> None:
        """UserError unless a bundle of it, at `where`, can be asked."""
        if not self.answers:
            raise UserError(
                f"bundle {where} is a pretrained encoder (task {self.name}) without labels: it "
                "answers nothing yet; train a classifier from it, with the run's folder `model` as "
                "model.init"
            )


def together(parts: Sequence[Part], truth: np.ndarray, outputs: int) -> np.ndarray:
    """The outputs of all batches by the numbers of their texts: float32 [texts, outputs]."""
    values = np.zeros((len(truth), outputs), np.float32)
    for part in parts:
        values[part["texts"]] = part["logits"]
    return values
