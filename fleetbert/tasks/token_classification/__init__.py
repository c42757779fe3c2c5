"""Spans of a text, each of a kind: named entities, and whatever else tags of tokens tell.

The network tags the first token of each word (`data.words`) with O, or B- or I- and a kind (BIO).
"""

from __future__ import annotations

import functools
import json
from typing import Any, Collection, Iterable, Mapping, NamedTuple, Sequence

import numpy as np

from fleetbert.core.errors import UserError
from fleetbert.data import conll, words
from fleetbert.data import labels as labels_of
from fleetbert.data.tokenizers import Encodings, Tokenizer
from fleetbert.tasks import metrics
from fleetbert.tasks.collect import Arrays, Labelled, network_inputs
from fleetbert.tasks.task import Metrics, Task, Tensor, Values

OUTSIDE = "O"
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
    """The spans of a text, in its order."""

    spans: list[Span]
    exit_layer: int | None = None

    def as_json(self) -> dict[str, object]:
        return {"spans": [span.as_json() for span in self.spans]}


class Tagged(NamedTuple):
    """Outputs of one text: logits float32 [words, labels], words int32 [words, 3] as
    `words.of_tokens` gives them, and the text, "" where only places are wanted."""

    logits: np.ndarray
    words: np.ndarray
    text: str


class Scheme(NamedTuple):
    """What labels say. kinds: of spans; kind: int64 [labels], the number of each label's, -1 of O;
    own: int64, the labels for O and, of each kind, for first and later words: what `tags_of`
    gives."""

    labels: tuple[str, ...]
    kinds: list[str]
    kind: np.ndarray
    own: np.ndarray


def labels_of_kinds(kinds: Iterable[str]) -> list[str]:
    return [OUTSIDE, *(f"{prefix}-{kind}" for kind in kinds for prefix in "BI")]


def scheme_of(labels: Sequence[str]) -> Scheme:
    return _scheme(tuple(labels))


@functools.lru_cache(maxsize=16)
def _scheme(labels: tuple[str, ...]) -> Scheme:
    parts = [label.partition("-") for label in labels]
    kinds = list(dict.fromkeys(kind for _, _, kind in parts if kind))
    numbers = {kind: number for number, kind in enumerate(kinds)}
    places = {label: number for number, label in enumerate(labels)}

    def place(kind: str, prefixes: str) -> int:
        names = (f"{prefix}-{kind}" for prefix in prefixes)
        return next(places[name] for name in names if name in places)

    own = [place(kind, prefixes) for kind in kinds for prefixes in ("BISUMEL", "IMBELSU")]

    return Scheme(
        labels,
        kinds,
        np.array([numbers.get(kind, -1) for _, _, kind in parts], np.int64),
        np.array([places.get(OUTSIDE, 0), *own], np.int64),
    )


def tags_of(found: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """int64 [words], what spans (int64 [spans, 3]: characters and kind) ask of words, as numbers of
    `labels_of`: 0 for O, of kind k 1 + 2k for the first word and 2 + 2k for later ones. All that a
    span touches are in it; of two spans in a word the first counts."""
    tags = np.zeros(len(found), np.int64)
    free = 0
    for (begin, end), kind in zip(words.touched(found, spans), spans[:, 2].tolist()):
        begin = max(begin, free)
        if begin < end and kind >= 0:
            tags[begin] = 1 + 2 * kind
            tags[begin + 1 : end] = 2 + 2 * kind
            free = end
    return tags


class Collector(Labelled):
    """Texts with tags. `labels` and `weight` [rows, length] are of tokens; a weight of 0 is of one
    that nothing is asked of."""

    def arrays(
        self, part: np.ndarray, weight: np.ndarray, step: np.ndarray, epoch: int, packed: bool
    ) -> Arrays:
        batch = self.collate(self.split.encodings.ids, part, packed)
        labels = np.zeros(batch.input_ids.shape, np.int64)
        weights = np.zeros(batch.input_ids.shape, np.float32)
        texts, all_words = part[batch.order], self.words
        for text, number, first in zip(texts, batch.order, batch.first):
            places, tags = self.targets(int(text))
            labels.reshape(-1)[first + places] = tags
            weights.reshape(-1)[first + places] = weight[number]
        total = max(1, sum(self.asked(int(text)) for text in step))
        return {
            "inputs": network_inputs(batch),
            "labels": labels,
            "weight": weights / np.float32(total),
            "texts": texts,
            "words": [all_words[text] for text in texts],
            "n_texts": int(np.count_nonzero(weight)),
            "n_tokens": batch.n_tokens,
        }

    @property
    def words(self) -> Sequence[np.ndarray]:
        assert self.split.encodings.words is not None
        return self.split.encodings.words

    def asked(self, text: int) -> int:
        """How many tokens something is asked of."""
        found = self.words[text]
        if self.job.task.pieces == "first" or not len(found):
            return len(found)
        return int(self.lengths[text]) - 1 - int(found[0, 0])

    def targets(self, text: int) -> tuple[np.ndarray, np.ndarray]:
        """The tokens, int64, that something is asked of, and their labels."""
        found = self.words[text]
        tags = tags_of(found, self.split.labels[text])
        places = found[:, 0].astype(np.int64)
        if self.job.task.pieces == "first" or not len(found):
            return places, tags
        # All but the special token at the end; what goes on in a word goes on in its span.
        every = np.arange(places[0], self.lengths[text] - 1)
        word = np.searchsorted(places, every, "right") - 1
        return every, np.where(places[word] == every, tags[word], (tags[word] + 1) // 2 * 2)


class TokenClassification(Task):
    name = "token_classification"
    head = "tokens"
    loss = f"{__name__}.loss"
    collects = Collector
    gate_metric = "entity_f1"
    label = "spans"
    per_token = True
    takes_metrics = False
    picks_label = False

    def labels_of(self, written: Sequence[str]) -> list[str]:
        return labels_of_kinds(sorted({kind for one in written for _, _, kind in json.loads(one)}))

    def check_labels(self, labels: Sequence[str]) -> None:
        if len(labels) < 2:
            raise UserError("data.train: no text of it has a span; there is nothing to learn")
        kinds = dict.fromkeys(label.partition("-")[2] for label in labels if "-" in label)
        own = labels_of_kinds(kinds)
        if list(labels) != own:
            raise UserError(
                f"labels: of spans they are O, then B- and I- of each kind: {', '.join(own)}; give "
                "them in this order, or leave labels out"
            )

    def unknown(self, written: str, labels: Collection[str]) -> str | None:
        kinds = {label.partition("-")[2] for label in labels}
        names = (kind for _, _, kind in json.loads(written))
        return next((f"B-{kind}" for kind in names if kind not in kinds), None)

    def targets(self, written: Sequence[str], labels: Sequence[str]) -> np.ndarray:
        """An object array [written] of int64 [spans, 3]: characters, and the kind's number."""
        numbers = {kind: number for number, kind in enumerate(scheme_of(labels).kinds)}
        found = np.empty(len(written), object)
        for place, one in enumerate(written):
            spans = [(begin, end, numbers.get(kind, -1)) for begin, end, kind in json.loads(one)]
            found[place] = np.array(spans, np.int64).reshape(-1, 3)
        return found

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

    def describe(self, targets: np.ndarray, labels: Sequence[str]) -> str:
        counts = self.kinds(targets, labels)
        said = labels_of.describe(scheme_of(labels).kinds, counts).replace(" labels:", " kinds:", 1)
        return f"{counts.sum()} spans of {said}"

    def doubts(self, targets: np.ndarray, labels: Sequence[str]) -> list[str]:
        return labels_of.warnings(scheme_of(labels).kinds, self.kinds(targets, labels))

    def outputs(self, labels: Sequence[str]) -> int:
        return len(labels)

    def encode(
        self, tokenizer: Tokenizer, texts_a: list[str], texts_b: list[str] | None, max_length: int
    ) -> Encodings:
        return words.encode(tokenizer, texts_a, max_length)

    def of_texts(
        self, outputs: np.ndarray, found: Sequence[np.ndarray] | None, texts: Sequence[str]
    ) -> np.ndarray:
        """An object array [texts] of `Tagged`."""
        assert found is not None
        return tagged(outputs, found, texts)

    def evaluate(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Metrics:
        """Entity F1, precision and recall, the loss of words, the table by kind, and which kinds
        were taken for which."""
        scheme = scheme_of(labels)
        found = [spans_of(one, scheme) for one in outputs]
        asked = [scheme.own[tags_of(one.words, spans)] for one, spans in zip(outputs, truth)]
        tags = np.concatenate([*asked, np.zeros(0, np.int64)])
        logits = np.concatenate([one.logits for one in outputs]) if len(tags) else np.zeros((0, 1))
        loss = metrics.cross_entropy(tags, logits) if len(tags) else 0.0
        return {**metrics.entities(list(truth), found, scheme.kinds), "loss": loss}

    def sums(
        self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]
    ) -> np.ndarray | None:
        """int64 [texts, 3]: spans that are right, that are there, and that were answered."""
        scheme = scheme_of(labels)
        pairs = [(spans, spans_of(one, scheme)) for spans, one in zip(truth, outputs)]
        rows = [((own[:, None] == one).all(2).sum(), len(own), len(one)) for own, one in pairs]
        return np.array(rows, np.int64).reshape(-1, 3)

    def of_sums(self, sums: np.ndarray) -> float:
        right, there, answered = sums.tolist()
        return float(2 * right / max(there + answered, 1))

    def to_answers(
        self, labels: Sequence[str], outputs: np.ndarray, exit_layers: np.ndarray | None
    ) -> list[SpansAnswer]:
        return [SpansAnswer(answer(one, labels)) for one in outputs]

    def in_words(self, told: Mapping[str, Any]) -> str:
        spans = told["spans"]
        shown = [f"{one['text']} ({one['kind']}, {one['score']:.1%})" for one in spans]
        more = f", and {len(spans) - MOST_IN_WORDS} more" if len(spans) > MOST_IN_WORDS else ""
        return ", ".join(shown[:MOST_IN_WORDS]) + more if spans else "no span"

    def tell(self, labels: Sequence[str], outputs: np.ndarray) -> list[Values]:
        answers = (SpansAnswer(answer(one, labels)).as_json()["spans"] for one in outputs)
        return [[json.dumps(spans, ensure_ascii=False) for spans in answers]]

    def tensors(self, labels: Sequence[str]) -> list[Tensor]:
        return [Tensor("spans", "BYTES", (-1,)), Tensor("exit_layer", "INT32", (-1,))]


def tagged(
    outputs: Iterable[np.ndarray], found: Sequence[np.ndarray], texts: Sequence[str]
) -> np.ndarray:
    """An object array [texts] of `Tagged`, of outputs float32 [own tokens, labels] of each."""
    rows = np.empty(len(texts), object)
    for number, (logits, places, text) in enumerate(zip(outputs, found, texts)):
        rows[number] = Tagged(logits[places[:, 0]], places, text)
    return rows


def spans_of(one: Tagged, scheme: Scheme) -> np.ndarray:
    """int64 [spans, 3]: characters and kind."""
    tags = map(scheme.labels.__getitem__, one.logits.argmax(1).tolist())
    spans = [
        (one.words[first, 1], one.words[last - 1, 2], scheme.kinds.index(kind))
        for first, last, kind in conll.spans_of(tags)
    ]
    return np.array(spans, np.int64).reshape(-1, 3)


def answer(one: Tagged, labels: Sequence[str]) -> list[Span]:
    """The spans of a text."""
    chances = metrics.softmax(one.logits).max(1)
    found = []
    for first, last, kind in conll.spans_of(labels[tag] for tag in one.logits.argmax(1).tolist()):
        start, end = int(one.words[first, 1]), int(one.words[last - 1, 2])
        found.append(Span(start, end, kind, float(chances[first:last].mean()), one.text[start:end]))
    return found


TOKEN_CLASSIFICATION = TokenClassification()
