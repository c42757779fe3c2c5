"""Answers, the tensors that a server tells, and words for a reader: of every task on texts."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any, List, Mapping, NamedTuple, Protocol, Sequence, Union

import numpy as np

from fleetbert.core.reading import Reading
from fleetbert.core.task_names import Shape
from fleetbert.data import windows
from fleetbert.data.tokenizers import Encodings, Tokenizer
from fleetbert.data.windows import Layout

# A tensor's values, one for each text: strings, or an array [texts, ...].
Values = Union[List[str], np.ndarray]


# Keeps the length of a vector from 0.
TINY = np.float32(1e-12)

# In answers; an integer where the bundle's are (`bundle.manifest.Task`).
Label = Union[str, int]


class Answer(Protocol):
    """What a user is told of one text or pair."""

    @property
    def exit_layer(self) -> int | None:
        """The layer after which the text left; None where all go through."""

    def as_json(self) -> dict[str, object]:
        """As `fleetbert predict` and the command line of a board print it."""


class Tensor(NamedTuple):
    """A tensor that a server takes or tells. -1 in its shape: one for each text."""

    name: str
    datatype: str  # of the Open Inference Protocol
    shape: tuple[int, ...]


class Answers:
    """thresholds: of a bundle's labels, by name; most tasks have none."""

    thresholds: Mapping[str, float] = MappingProxyType({})

    def __init__(self, shape: Shape):
        self.shape = shape

    @property
    def doubt(self) -> str:
        """How unsure an inner layer's answer is, of `engines.exits.DOUBTS`; "": texts leave after
        the last layer only."""
        return "entropy" if self.shape.picks_label else ""

    def exit_head(self, wanted: str) -> str:
        """Which of `engines.exit_heads.KINDS` answers after inner layers. wanted: what a job
        names, of those that give a row for each text."""
        return wanted

    def encode(
        self, tokenizer: Tokenizer, texts_a: list[str], texts_b: list[str] | None, reading: Reading
    ) -> Encodings:
        """The tokens of texts, and what the answers need to know of them."""
        return windows.encode(tokenizer, texts_a, texts_b, reading)

    def pool(self, outputs: np.ndarray, layout: Layout | None) -> np.ndarray:
        """An engine's outputs of rows, float32 [rows, ...] → those of texts: the mean or the
        largest of a text's windows, of vectors the mean by tokens with length 1, or the outputs of
        each token from the window in which it has the most context. layout: None where each text
        is a row."""
        if layout is None:
            return outputs
        if outputs.dtype == object:
            lengths = np.array([len(row) for row in outputs])
            tokens = np.concatenate(layout.tokens(np.cumsum(lengths) - lengths))
            return by_text(np.concatenate(list(outputs))[tokens], layout.lengths)
        if layout.pool == "max":
            largest: np.ndarray = np.maximum.reduceat(outputs, layout.starts)
            return largest
        mean: np.ndarray = np.add.reduceat(outputs * layout.shares[:, None], layout.starts)
        if layout.pool == "vectors":
            size = np.linalg.norm(mean, axis=1, keepdims=True) + TINY
            return np.where(np.bincount(layout.text)[:, None] > 1, mean / size, mean)
        return mean

    def of_texts(
        self, outputs: np.ndarray, words: Sequence[np.ndarray] | None, texts: Sequence[str]
    ) -> np.ndarray:
        """What `Evaluator.evaluate`, `to_answers` and `tell` take, of an engine's outputs: here
        these. words: `Encodings.words`; texts: those that spans are of, the second of a pair."""
        return outputs

    def to_answers(
        self, labels: Sequence[Any], outputs: np.ndarray, exit_layers: np.ndarray | None
    ) -> Sequence[Answer]:
        """An engine's outputs float32 [texts, outputs], and int64 [texts] the layers after which
        texts left if they can → the answers. labels: `Label`s of the model."""
        raise NotImplementedError(f"task {self.shape.name} answers nothing")

    def scores(self, outputs: np.ndarray) -> np.ndarray:
        """What a text's answer says in numbers, [texts, ...] as an engine's outputs are:
        probabilities where the task has them, here the outputs."""
        return outputs

    def tensors(self, labels: Sequence[str], outputs: int) -> list[Tensor]:
        """What a server tells of each text, `exit_layer` last where a network has layers; outputs:
        see `Task.outputs`."""
        return []

    def tell(self, labels: Sequence[Any], outputs: np.ndarray) -> list[Values]:
        """The values of `tensors` but `exit_layer`, of an engine's finite outputs. labels: `Label`s
        of the model; a BYTES tensor has one as a string, or several as JSON."""
        raise NotImplementedError(f"task {self.shape.name} cannot be served: it has no `tell`")

    def in_words(self, answer: Mapping[str, Any]) -> str:
        """An answer's `as_json` as one line for a reader."""
        return json.dumps(answer, ensure_ascii=False)

    def together_in_words(self, answers: Sequence[Mapping[str, Any]]) -> list[str]:
        """What several answers say beside each other, as lines for a reader."""
        return []


def layers_of(exit_layers: np.ndarray | None, texts: int) -> list[int | None]:
    """The layer that each text left after; None where texts cannot leave early."""
    return [None] * texts if exit_layers is None else exit_layers.tolist()


def layer_as_json(exit_layer: int | None) -> dict[str, object]:
    """The field of an answer's JSON, where the text could leave early."""
    return {} if exit_layer is None else {"exit_layer": exit_layer}


def scores_as_json(scores: Mapping[Any, float]) -> dict[str, float]:
    return {str(label): round(score, 6) for label, score in scores.items()}


def by_text(outputs: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Outputs [tokens, outputs] of texts one after the other → an array of objects [texts], each
    [own tokens, outputs]; lengths: int [texts]."""
    rows = np.empty(len(lengths), object)
    ends = np.cumsum(lengths).tolist()
    for number, (begin, end) in enumerate(zip([0, *ends], ends)):
        rows[number] = outputs[begin:end]
    return rows


def are_finite(outputs: np.ndarray) -> np.ndarray:
    """bool [texts]: whether all outputs of each are numbers."""
    if outputs.dtype == object:
        return np.array([np.isfinite(output).all() for output in outputs], bool)
    finite: np.ndarray = np.isfinite(outputs).all(axis=tuple(range(1, outputs.ndim)))
    return finite
