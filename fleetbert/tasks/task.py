"""What every kind of task on texts says of itself."""

from __future__ import annotations

import copy
import json
from abc import ABC, abstractmethod
from pathlib import Path
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Collection,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Protocol,
    Sequence,
    Union,
)

import numpy as np

from fleetbert import config as schema
from fleetbert.core.errors import UserError
from fleetbert.data import labels as labels_of
from fleetbert.data import read
from fleetbert.data.split import Split, with_targets
from fleetbert.data.tokenizers import Encodings, Tokenizer
from fleetbert.tasks.calibration import Fitted
from fleetbert.tasks.collect import Labelled
from fleetbert.tasks.metrics import Metrics

if TYPE_CHECKING:
    from fleetbert.tasks.loss import Loss

# A tensor's values, one for each text: strings, or an array [texts, ...].
Values = Union[List[str], np.ndarray]
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
    """One kind of answer. A name is an instance; `tasks.of` gives one that knows of a bundle's
    vectors and thresholds besides."""

    name: str
    pair: bool = False  # a question is two texts
    labelled: bool = True  # training texts have labels
    answers: bool = True  # a bundle can be asked
    loss: str | Loss  # or the module that has it, as `LOSS`: it loads Paddle
    head: ClassVar[str]  # of the network, see `models.heads`
    collects: ClassVar[type[Labelled]] = Labelled  # what makes a step's arrays
    gate_metric: ClassVar[str]  # what compression may lose little of; higher is better
    label: ClassVar[str] = "name"  # how tables write what is learned, of `data.written.KINDS`
    # The outputs are logits of labels, of which the largest is the answer. Methods that compare
    # probabilities of labels (distillation, prune) take no others.
    picks_label: ClassVar[bool] = True
    least_labels: ClassVar[int] = 2  # that a bundle has
    # The network has outputs for each token: an engine gives float32 [own tokens, outputs] of each
    # text, in an array of objects [texts].
    per_token: ClassVar[bool] = False
    pooled: ClassVar[bool] = False  # the answers are made by `task.pooling` of a job
    takes_metrics: ClassVar[bool] = True  # of a user's own, on outputs [texts, outputs]
    calibrates: ClassVar[bool] = False  # `fit` and `confidence` are there
    tells: ClassVar[str] = ""  # what a bundle without labels tells of each text
    thresholds: Mapping[str, float] = MappingProxyType({})

    def of_width(self, width: int | None) -> Task:
        """The task of a network whose vectors have `width` numbers, for tasks that answer these."""
        return self

    def table_format(
        self, path: str | Path, quoting: read.Quoting = "auto", labelled: bool | None = None
    ) -> read.Format:
        """How texts are read; labelled: whether each needs a label (None: as training does)."""
        labelled = self.labelled if labelled is None else labelled
        return read.table_format(
            path, pair=self.pair, labelled=labelled, quoting=quoting, label=self.label
        )

    def texts(self, examples: Sequence[read.Example]) -> tuple[list[str], list[str] | None]:
        """What the network is asked for examples: texts, and as many second ones where it takes
        pairs. `per_example` puts together what it gives."""
        texts_b = [example.text_b or "" for example in examples] if self.pair else None
        return [example.text_a for example in examples], texts_b

    def per_example(self, outputs: np.ndarray) -> np.ndarray:
        """Outputs of `texts` [texts, ...] → what `evaluate` compares, [examples, ...]."""
        return outputs

    def labels_of(self, written: Sequence[str]) -> list[str]:
        """The labels of a model that learns from texts with these written labels, each of which is
        there once."""
        return labels_of.in_order(written)

    def check_labels(self, labels: Sequence[str]) -> None:  # noqa: B027  most need no check
        """UserError for labels of training texts that nothing can be learned from."""

    def unknown(self, written: str, labels: Collection[str]) -> str | None:
        """A label in a written one that is not among `labels`; None if there is none."""
        return next((name for name in self.labels_of([written]) if name not in labels), None)

    def targets(self, written: Sequence[str], labels: Sequence[str]) -> np.ndarray:
        """What written labels ask of the outputs, [written, ...]: here int64, the numbers of
        labels; -1 for an unknown one."""
        places = {label: number for number, label in enumerate(labels)}
        return np.array([places.get(label, -1) for label in written], np.int64)

    def with_targets(self, split: Split, own: Sequence[str], labels: Sequence[str]) -> Split:
        """The split with targets for its written labels `own`; UserError with the line of a label
        that is unknown."""
        if not self.labelled:
            return split
        known = frozenset(labels)
        unknown = [self.unknown(written, known) for written in own]
        split = with_targets(split, own, labels, self.targets(own, labels), unknown)
        self.check_targets(split.name, split.labels)
        return split

    def check_targets(self, name: str, targets: np.ndarray) -> None:  # noqa: B027
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

    def describe(self, targets: np.ndarray, labels: Sequence[str]) -> str | None:
        """What training texts ask for, as a line for the log."""
        return labels_of.describe(labels, self.counts(targets, labels)) if labels else None

    def doubts(self, targets: np.ndarray, labels: Sequence[str]) -> list[str]:
        """What of it looks like a mistake."""
        return labels_of.warnings(labels, self.counts(targets, labels)) if labels else []

    def collector(self, split: Split, job: schema.Config, tokenizer: Tokenizer) -> Labelled:
        return self.collects(split, job, tokenizer)

    @abstractmethod
    def outputs(self, labels: Sequence[str]) -> int:
        """How many numbers the network gives for a text; of `per_token` for a token."""

    def room(self, texts: int, labels: Sequence[str]) -> np.ndarray:
        """For the outputs of so many texts."""
        return (
            np.zeros(texts, object)
            if self.per_token
            else np.zeros((texts, self.outputs(labels)), np.float32)
        )

    def encode(
        self, tokenizer: Tokenizer, texts_a: list[str], texts_b: list[str] | None, max_length: int
    ) -> Encodings:
        """The tokens of texts, and what the answers need to know of them."""
        return tokenizer.encode(texts_a, texts_b, max_length)

    def of_texts(
        self, outputs: np.ndarray, words: Sequence[np.ndarray] | None, texts: Sequence[str]
    ) -> np.ndarray:
        """What `evaluate`, `to_answers` and `tell` take, of an engine's outputs: here these. words:
        `Encodings.words` of the texts."""
        return outputs

    @abstractmethod
    def evaluate(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Metrics:
        """Metrics with `n`, most with `loss`; truth [examples, ...], as `targets` gives it; outputs
        float32 [examples, outputs], as `per_example` does, or what `of_texts` makes of them."""

    def sums(
        self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]
    ) -> np.ndarray | None:
        """Numbers [texts, any] whose sums over texts `of_sums` makes `gate_metric` of, which is
        faster to draw samples of; None where there are none."""
        return None

    def of_sums(self, sums: np.ndarray) -> float:
        raise NotImplementedError

    def doubt(self) -> str:
        """How unsure an inner layer's answer is, of `engines.exits.DOUBTS`; "": texts leave after
        the last layer only."""
        return "entropy" if self.picks_label else ""

    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        """What a metric of scikit-learn's takes as `y_pred`; here the likeliest label's number."""
        best: np.ndarray = outputs.argmax(axis=1)
        return best

    def right(self, truth: np.ndarray, outputs: np.ndarray) -> np.ndarray | None:
        """Whether each answer is right, bool [texts], where `gate_metric` is the share of those;
        None where it is another figure."""
        return None

    def evaluate_parts(
        self, parts: Sequence[Part], truth: np.ndarray, labels: Sequence[str]
    ) -> Metrics:
        """`evaluate` the outputs of all batches, which come in any order; `texts` of a part says
        which they are."""
        outputs = together(parts, self.room(len(truth), labels))
        return {**self.evaluate(truth, outputs, labels), **self.plots(truth, outputs, labels)}

    def plots(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Metrics:
        """What a run's report draws besides; ready for JSON, and small."""
        return {}

    def with_thresholds(self, thresholds: Mapping[str, float]) -> Task:
        """This task with the thresholds of a bundle's labels, by name; most have none."""
        known = copy.copy(self)
        known.thresholds = thresholds
        return known

    def fit(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Fitted:
        """What makes probabilities of a network's outputs true, on texts it was not trained on."""
        raise NotImplementedError(f"task {self.name} has no probabilities")

    def confidence(self, truth: np.ndarray, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities that were told, float64 [answers], and whether each was right, bool."""
        raise NotImplementedError(f"task {self.name} has no probabilities")

    def criterion(self, wanted: str, metrics: Metrics) -> Criterion:
        """What the best step is told by, where a job wants `trainer.best_metric`."""
        for metric in (wanted, self.gate_metric):
            if metric in metrics:
                return Criterion(metric, metric == "loss")
        return Criterion("loss", True)

    def to_answers(
        self, labels: Sequence[str], outputs: np.ndarray, exit_layers: np.ndarray | None
    ) -> Sequence[Answer]:
        """An engine's outputs float32 [texts, outputs], and int64 [texts] the layers after which
        texts left if they can → the answers."""
        raise NotImplementedError(f"task {self.name} answers nothing")

    def tensors(self, labels: Sequence[str]) -> list[Tensor]:
        """What a server tells of each text, `exit_layer` last."""
        return []

    def tell(self, labels: Sequence[str], outputs: np.ndarray) -> list[Values]:
        """The values of `tensors` but `exit_layer`, of an engine's finite outputs."""
        raise NotImplementedError(f"task {self.name} cannot be served: it has no `tell`")

    def in_words(self, told: Mapping[str, Any]) -> str:
        """An answer's `as_json` as one line for a reader."""
        return json.dumps(told, ensure_ascii=False)

    def together_in_words(self, told: Sequence[Mapping[str, Any]]) -> list[str]:
        """What several answers say beside each other, as lines for a reader."""
        return []

    def head_fields(self) -> dict[str, object]:
        """Fields of a model's config.json by which transformers knows what its head is for."""
        return {}

    def check_picks_label(self, where: str, because: str) -> None:
        """UserError unless the answer is the likeliest of labels, which a method, at `where` for
        the user, needs for the reason `because`."""
        if self.answers and not self.picks_label:
            raise UserError(
                f"{where} answers the task {self.name}, and {because}; the methods static, "
                "dynamic, qat and onnx, and export to onnx take every task (docs/tasks.md)"
            )

    def check_answers(self, where: str) -> None:
        """UserError unless a bundle of it, at `where`, can be asked."""
        if not self.answers:
            raise UserError(
                f"bundle {where} is a pretrained encoder (task {self.name}) without labels: it "
                "answers nothing yet; train a classifier from it, with the run's folder `model` as "
                "model.init"
            )


def together(parts: Sequence[Part], room: np.ndarray) -> np.ndarray:
    """The outputs of all batches by the numbers of their texts, in a task's `room`."""
    for part in parts:
        room[part["texts"]] = part["logits"]
    return room


def own_tokens(outputs: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Outputs [texts, length, outputs] → an array of objects [texts], each [own tokens, outputs];
    lengths: int [texts]."""
    rows = np.empty(len(outputs), object)
    for number, length in enumerate(lengths.tolist()):
        rows[number] = outputs[number, :length]
    return rows


def largest_difference(one: np.ndarray, other: np.ndarray) -> float:
    """Between two engines' outputs of the same texts."""
    return max(float(np.abs(first - second).max()) for first, second in zip(one, other))


def are_finite(outputs: np.ndarray) -> np.ndarray:
    """bool [texts]: whether all outputs of each are numbers."""
    if outputs.dtype == object:
        return np.array([np.isfinite(one).all() for one in outputs], bool)
    finite: np.ndarray = np.isfinite(outputs).all(axis=tuple(range(1, outputs.ndim)))
    return finite
