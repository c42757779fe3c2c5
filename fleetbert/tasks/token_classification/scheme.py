"""Tags of words: O, or B- or I- and a kind (BIO), and the spans that they make.

The network tags the first token of each word (`data.words`).
"""

from __future__ import annotations

import functools
from typing import Iterable, NamedTuple, Sequence

import numpy as np

from fleetbert.data import conll, words

OUTSIDE = "O"


class Tagged(NamedTuple):
    """Outputs of one text: logits float32 [words, labels], words int32 [words, 3] as
    `words.of_tokens` gives them, and the text, "" where only places are wanted."""

    logits: np.ndarray
    words: np.ndarray
    text: str


class Scheme(NamedTuple):
    """What labels say. kinds: of spans; kind: int64 [labels], the number of each label's, -1 of O;
    tags: int64, the labels for O and, of each kind, for first and later words: what `tags_of`
    gives."""

    labels: tuple[str, ...]
    kinds: list[str]
    kind: np.ndarray
    tags: np.ndarray


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

    tag_places = [place(kind, prefixes) for kind in kinds for prefixes in ("BISUMEL", "IMBELSU")]

    return Scheme(
        labels,
        kinds,
        np.array([numbers.get(kind, -1) for _, _, kind in parts], np.int64),
        np.array([places.get(OUTSIDE, 0), *tag_places], np.int64),
    )


def tags_of(of_text: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """int64 [words], what spans (int64 [spans, 3]: characters and kind) ask of a text's words, as
    numbers of `labels_of`: 0 for O, of kind k 1 + 2k for the first word and 2 + 2k for later ones.
    All that a span touches are in it; of two spans in a word the first counts."""
    tags = np.zeros(len(of_text), np.int64)
    free = 0
    for (begin, end), kind in zip(words.touched(of_text, spans), spans[:, 2].tolist()):
        begin = max(begin, free)
        if begin < end and kind >= 0:
            tags[begin] = 1 + 2 * kind
            tags[begin + 1 : end] = 2 + 2 * kind
            free = end
    return tags


def tagged(
    outputs: Iterable[np.ndarray], words: Sequence[np.ndarray], texts: Sequence[str]
) -> np.ndarray:
    """An object array [texts] of `Tagged`, of outputs float32 [own tokens, labels] of each."""
    rows = np.empty(len(texts), object)
    for number, (logits, places, text) in enumerate(zip(outputs, words, texts)):
        rows[number] = Tagged(logits[places[:, 0]], places, text)
    return rows


def spans_of(tagged: Tagged, scheme: Scheme) -> np.ndarray:
    """int64 [spans, 3]: characters and kind."""
    tags = map(scheme.labels.__getitem__, tagged.logits.argmax(1).tolist())
    spans = [
        (tagged.words[first, 1], tagged.words[last - 1, 2], scheme.kinds.index(kind))
        for first, last, kind in conll.spans_of(tags)
    ]
    return np.array(spans, np.int64).reshape(-1, 3)
