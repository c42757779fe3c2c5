"""The words of a text: what is tagged.

Tokens of a table in columns are words as they stand there (`conll.Joined`). In any other text a
word is what stands between blanks, without the punctuation, each of which is one by itself, as
each character is of scripts that are written without blanks. So WordPiece sees words, too.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from itertools import groupby

import numpy as np

from fleetbert.core.reading import Reading
from fleetbert.data import windows
from fleetbert.data.conll import SPACELESS, Joined
from fleetbert.data.tokenizers import WHOLE, Encodings, Tokenizer


def find(text: str) -> np.ndarray:
    """int32 [words, 2]: the characters where each begins and ends."""
    if isinstance(text, Joined):
        spans = text.words
    else:
        spans = [match.span() for match in _pattern().finditer(text)]
    return np.array(spans, np.int32).reshape(-1, 2)


def encode(tokenizer: Tokenizer, texts: list[str], reading: Reading) -> Encodings:
    """Texts as `windows.encode` has them, with `Encodings.words`."""
    cut = reading.long_texts == "cut"
    encodings, offsets = tokenizer.encode_with_offsets(texts, reading.max_length if cut else WHOLE)
    encodings = encodings._replace(words=[of_tokens(*pair) for pair in zip(texts, offsets)])
    return encodings if cut else windows.fit(encodings, reading)


def of_tokens(text: str, offsets: np.ndarray) -> np.ndarray:
    """int32 [words, 3] of each word that has tokens: the first of them, and the characters where
    the word begins and ends. offsets: int32 [tokens, 2].

    A token that has characters of several words, as of Unigram in Chinese, makes one of them.
    """
    words = find(text)
    held, begins, ends = visible(text, offsets).T
    if not len(held) or not len(words):
        return np.zeros((0, 3), np.int32)
    first = np.searchsorted(words[:, 0], begins, "right") - 1
    last = np.maximum(np.searchsorted(words[:, 0], ends - 1, "right") - 1, first)
    reached = np.maximum.accumulate(last)  # the furthest word that tokens up to this one have
    new = np.ones(len(held), bool)
    new[1:] = first[1:] > reached[:-1]
    places = np.flatnonzero(new)
    stops = np.append(places[1:], len(held)) - 1
    columns = [held[places], words[first[places], 0], words[reached[stops], 1]]
    return np.stack(columns, 1).astype(np.int32)


def visible(text: str, offsets: np.ndarray) -> np.ndarray:
    """int32 [tokens, 3] of each token that has characters: its number, and where these begin, after
    blanks, which belong to tokens too, and end. offsets: int32 [tokens, 2]."""
    begins, ends = offsets[:, 0].copy(), offsets[:, 1]
    for number in np.flatnonzero(begins < ends).tolist():
        piece = text[begins[number] : ends[number]]
        begins[number] += len(piece) - len(piece.lstrip())
    held = np.flatnonzero(begins < ends)
    return np.stack([held, begins[held], ends[held]], 1).astype(np.int32)


def with_marks(text: str) -> np.ndarray:
    """int64 [characters + 1]: where what ends at each character ends with the marks that follow."""
    ends = np.arange(len(text) + 1)
    for run in re.finditer(f"[{_marks()}]+", text):
        ends[run.start() : run.end()] = run.end()
    return ends


@functools.lru_cache(maxsize=1)
def _marks() -> str:
    """Of a pattern's class: what goes with the character before it, such as accents and vowels."""
    runs = groupby(range(0x20000), lambda code: unicodedata.category(chr(code))[0])
    marks = [list(codes) for category, codes in runs if category == "M"]
    return "".join(f"{chr(codes[0])}-{chr(codes[-1])}" for codes in marks)


@functools.lru_cache(maxsize=1)
def _pattern() -> re.Pattern[str]:
    marks, spaceless = _marks(), SPACELESS[1:-1]
    return re.compile(f"(?:[^\\W_{spaceless}][{marks}]*)+|\\S[{marks}]*")


def touched(words: np.ndarray, spans: np.ndarray) -> list[tuple[int, int]]:
    """The words, (first, end), that each span touches; int [words, 3] and [spans, 2 or more]:
    characters are the last two columns of the one, the first two of the other."""
    first = np.searchsorted(words[:, 2], spans[:, 0], "right")
    last = np.searchsorted(words[:, 1], spans[:, 1], "left")
    return list(zip(first.tolist(), last.tolist()))
