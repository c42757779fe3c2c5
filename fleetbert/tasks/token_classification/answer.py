"""The spans of a text."""

from __future__ import annotations

import json
from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np

from fleetbert.core.reading import Reading
from fleetbert.data import conll, words
from fleetbert.data.tokenizers import Encodings, Tokenizer
from fleetbert.tasks.answer import Answers, Tensor, Values, by_text, layer_as_json, layers_of
from fleetbert.tasks.metrics import softmax
from fleetbert.tasks.token_classification.scheme import Tagged, tagged

MOST_IN_WORDS = 20  # spans that a line for a reader names


class Span(NamedTuple):
    """Characters of a text, `text[start:end]`, which are of a kind. score: the mean probability of
    its words' tags."""

    start: int
    end: int
    kind: str
    score: float
    text: str

    def as_json(self) -> dict[str, object]:
        return {**self._asdict(), "score": round(self.score, 6)}


class SpansAnswer(NamedTuple):
    """The spans of a text, in its order, and the layer after which the text left, where it could
    leave early."""

    spans: list[Span]
    exit_layer: int | None = None

    def as_json(self) -> dict[str, object]:
        spans = [span.as_json() for span in self.spans]
        return {"spans": spans, **layer_as_json(self.exit_layer)}


class SpansAnswers(Answers):
    doubt = "tokens"

    def exit_head(self, wanted: str) -> str:
        return "tokens"

    def encode(
        self, tokenizer: Tokenizer, texts_a: list[str], texts_b: list[str] | None, reading: Reading
    ) -> Encodings:
        return words.encode(tokenizer, texts_a, reading)

    def of_texts(
        self, outputs: np.ndarray, words: Sequence[np.ndarray] | None, texts: Sequence[str]
    ) -> np.ndarray:
        """An object array [texts] of `Tagged`."""
        assert words is not None
        return tagged(outputs, words, texts)

    def to_answers(
        self, labels: Sequence[str], outputs: np.ndarray, exit_layers: np.ndarray | None
    ) -> list[SpansAnswer]:
        layers = layers_of(exit_layers, len(outputs))
        return [
            SpansAnswer(answer(tagged, labels), layer) for tagged, layer in zip(outputs, layers)
        ]

    def scores(self, outputs: np.ndarray) -> np.ndarray:
        of_all = softmax(np.concatenate(list(outputs)))
        return by_text(of_all, np.array([len(row) for row in outputs]))

    def in_words(self, answer: Mapping[str, Any]) -> str:
        spans = answer["spans"]
        shown = [f"{span['text']} ({span['kind']}, {span['score']:.1%})" for span in spans]
        more = f", and {len(spans) - MOST_IN_WORDS} more" if len(spans) > MOST_IN_WORDS else ""
        return ", ".join(shown[:MOST_IN_WORDS]) + more if spans else "no span"

    def tell(self, labels: Sequence[str], outputs: np.ndarray) -> list[Values]:
        answers = (SpansAnswer(answer(tagged, labels)).as_json()["spans"] for tagged in outputs)
        return [[json.dumps(spans, ensure_ascii=False) for spans in answers]]

    def tensors(self, labels: Sequence[str], outputs: int) -> list[Tensor]:
        return [Tensor("spans", "BYTES", (-1,)), Tensor("exit_layer", "INT32", (-1,))]


def answer(tagged: Tagged, labels: Sequence[str]) -> list[Span]:
    """The spans of a text."""
    chances = softmax(tagged.logits).max(1)
    spans = []
    for first, last, kind in conll.spans_of(
        labels[tag] for tag in tagged.logits.argmax(1).tolist()
    ):
        start, end = int(tagged.words[first, 1]), int(tagged.words[last - 1, 2])
        spans.append(
            Span(start, end, kind, float(chances[first:last].mean()), tagged.text[start:end])
        )
    return spans
