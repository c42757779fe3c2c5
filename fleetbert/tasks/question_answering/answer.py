"""The answer to a question."""

from __future__ import annotations

import json
from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np

from fleetbert.core.reading import Reading, usual_stride
from fleetbert.data import contexts
from fleetbert.data.tokenizers import Encodings, Tokenizer
from fleetbert.data.windows import Layout
from fleetbert.tasks.answer import Answers, Tensor, Values, by_text, layer_as_json, layers_of
from fleetbert.tasks.metrics import softmax
from fleetbert.tasks.question_answering.decoding import EVEN, NO_ANSWER, Candidates, candidates

N_BEST = 5  # answers, the likeliest


class Candidate(NamedTuple):
    """A part of the context, `context[start:end]`; null text, start and end: no answer. score: its
    probability."""

    text: str | None
    start: int | None
    end: int | None
    score: float

    def as_json(self) -> dict[str, object]:
        return {**self._asdict(), "score": round(self.score, 6)}


class ContextAnswer(NamedTuple):
    """The answer to a question, with the fields of `Candidate`; n_best: the likeliest ones, no
    answer among them where the model has learned to give none. exit_layer: the layer after which
    the text left, where it could leave early."""

    text: str | None
    start: int | None
    end: int | None
    score: float
    n_best: list[Candidate]
    exit_layer: int | None = None

    def as_json(self) -> dict[str, object]:
        answer = Candidate(*self[:4]).as_json()
        n_best = [candidate.as_json() for candidate in self.n_best]
        return {**answer, "n_best": n_best, **layer_as_json(self.exit_layer)}


class ContextAnswers(Answers):
    doubt = ""  # a layer's doubt would be that of its likeliest answer, of all windows

    def encode(
        self, tokenizer: Tokenizer, texts_a: list[str], texts_b: list[str] | None, reading: Reading
    ) -> Encodings:
        """Whole contexts, which are read in windows, whatever `reading` says of long texts; `words`
        are their tokens (`data.contexts`)."""
        assert texts_b is not None
        if reading.long_texts != "windows":
            stride = usual_stride(reading.max_length, of_contexts=True)
            reading = reading._replace(long_texts="windows", stride=stride)
        encodings = contexts.encode(tokenizer, texts_a, texts_b, reading.max_length)
        return encodings._replace(reading=reading)

    def pool(self, outputs: np.ndarray, layout: Layout | None) -> np.ndarray:
        """Of each token from the window in which it has the most context; of the first one, which
        stands for no answer, from the window that is least for it."""
        pooled = super().pool(outputs, layout)
        if layout is not None:
            firsts = np.stack([row[0] for row in outputs])
            order = np.lexsort((firsts.sum(1), layout.text))
            for row, least in zip(pooled, firsts[order][layout.starts]):
                row[0] = least
        return pooled

    def of_texts(
        self, outputs: np.ndarray, words: Sequence[np.ndarray] | None, texts: Sequence[str]
    ) -> np.ndarray:
        """An object array [texts] of `Candidates`."""
        assert words is not None
        rows = np.empty(len(outputs), object)
        for number, row in enumerate(zip(outputs, words, texts)):
            rows[number] = candidates(*row)
        return rows

    def to_answers(
        self, labels: Sequence[Any], outputs: np.ndarray, exit_layers: np.ndarray | None
    ) -> list[ContextAnswer]:
        layers = layers_of(exit_layers, len(outputs))
        return [self._answer(output, labels, layer) for output, layer in zip(outputs, layers)]

    def _answer(
        self, output: Candidates, labels: Sequence[Any], exit_layer: int | None = None
    ) -> ContextAnswer:
        *chances, lack = output.chances(bool(labels)).tolist()
        n_best = [
            Candidate(output.context[begin:end], begin, end, chance)
            for (begin, end), chance in zip(output.places.tolist(), chances)
        ]
        none = Candidate(None, None, None, lack)
        has_answer = output.has_answer(labels, self.thresholds.get(NO_ANSWER, EVEN))
        answer = n_best[0] if has_answer else none
        if labels:
            n_best = sorted([*n_best, none], key=lambda candidate: -candidate.score)
        return ContextAnswer(*answer, n_best[:N_BEST], exit_layer)

    def scores(self, outputs: np.ndarray) -> np.ndarray:
        """Where an answer begins and ends: probabilities over a text's tokens."""
        of_all = [softmax(row.T).T for row in outputs]
        return by_text(np.concatenate(of_all), np.array([len(row) for row in of_all]))

    def in_words(self, answer: Mapping[str, Any]) -> str:
        return f"{answer['text'] or 'no answer'} ({answer['score']:.1%})"

    def tell(self, labels: Sequence[Any], outputs: np.ndarray) -> list[Values]:
        answers = (self._answer(output, labels).as_json() for output in outputs)
        return [[json.dumps(answer, ensure_ascii=False) for answer in answers]]

    def tensors(self, labels: Sequence[str], outputs: int) -> list[Tensor]:
        return [Tensor("answer", "BYTES", (-1,)), Tensor("exit_layer", "INT32", (-1,))]
