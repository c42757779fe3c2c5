"""What every kind of tokenizer offers, and what one is opened from."""

from __future__ import annotations

import itertools
import re
import sys
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import Any, Callable, ClassVar, NamedTuple, Sequence, TypeVar

import numpy as np
import tokenizers

from fleetbert.bundle import Setting
from fleetbert.bundle import TokenizerSpec as Spec
from fleetbert.core.errors import UserError
from fleetbert.core.reading import Reading

# The library needs 450 bytes for each character of a text: of longer ones it is given the
# beginning, which has enough tokens.
LONG, CHUNK = 1 << 14, 1 << 12  # characters
COUNTED = 1 << 12  # tokens of a text; which of two with more is the longer one is not looked at
WHOLE = 1 << 30  # tokens of a text that is not cut
Token = TypeVar("Token")
HALF_PAIR = re.compile("[\ud800-\udfff]")


class Encodings(NamedTuple):
    """Token ids of texts or pairs.

    ids: one int32 array [length] a text, special tokens included; a pair is one text after the
        other.
    first_lengths: int32 [texts], how many tokens belong to segment 0.
    truncated: how many texts were cut to the maximum length.
    known_lengths: `lengths`, where they are known already.
    words: of each text int32 [words, 3], see `data.words.of_tokens`; None where nobody needs them.
    divided: int32 [texts, 2], where the tokens of each begin and end that windows divide
        (`data.windows`), and reading: what kind of windows; None where each text is one row.
    """

    ids: Sequence[np.ndarray]
    first_lengths: np.ndarray
    truncated: int
    known_lengths: np.ndarray | None = None
    words: Sequence[np.ndarray] | None = None
    divided: np.ndarray | None = None
    reading: Reading | None = None

    @property
    def lengths(self) -> np.ndarray:
        """int [texts], tokens of each text."""
        if self.known_lengths is not None:
            return self.known_lengths
        return np.fromiter((len(ids) for ids in self.ids), np.int64, len(self.ids))


class Template(NamedTuple):
    """The special tokens before a text, between the two of a pair, and after.

    in_first: how many of those between are of segment 0. one_type: everything is of it. left: texts
    lose their beginning where they are too long, not their end.
    """

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    in_first: int = 1
    one_type: bool = False
    left: bool = False

    def cut(self, tokens: list[Token], room: int) -> list[Token]:
        """At most `room` tokens of a text."""
        return tokens[max(len(tokens) - room, 0) :] if self.left else tokens[:room]


def assemble(
    firsts: list[list[int]], seconds: list[list[int]] | None, template: Template, max_length: int
) -> Encodings:
    """Texts, or pairs, of their ids without special tokens, cut to `max_length` tokens each.

    Both texts of a pair get half of the room, and what one leaves the other may take; the odd token
    goes to the longer text, to the second where both are equally long, as transformers' fast
    tokenizers do it (longest_first).
    """
    before, between, after, in_first, one_type, _ = template
    special = len(before) + len(after) + (0 if seconds is None else len(between))
    if max_length < special:
        raise UserError(f"max_length is {max_length}; {special} special tokens alone need more")
    room = max_length - special
    if seconds is None:
        truncated = sum([len(first) > room for first in firsts])
        ids = [
            np.array([*before, *template.cut(tokens, room), *after], np.int32) for tokens in firsts
        ]
        return Encodings(ids, np.array([len(text_ids) for text_ids in ids], np.int32), truncated)
    if len(firsts) != len(seconds):
        raise ValueError(f"{len(firsts)} first texts but {len(seconds)} second texts")
    ids = []
    first_lengths = np.zeros(len(firsts), np.int32)
    truncated = 0
    for number, (first, second) in enumerate(zip(firsts, seconds)):
        if len(first) + len(second) > room:
            truncated += 1
            most = _counted(max_length)
            odd = room % 2 if min(len(second), most) >= min(len(first), most) else 0
            keep = min(len(second), max(room - len(first), room // 2 + odd))
            first, second = template.cut(first, room - keep), template.cut(second, keep)
        ids.append(np.array([*before, *first, *between, *second, *after], np.int32))
        in_segment_0 = len(before) + len(first) + in_first
        first_lengths[number] = len(ids[-1]) if one_type else in_segment_0
    return Encodings(ids, first_lengths, truncated)


def assemble_whole(
    firsts: list[list[int]], seconds: list[list[int]] | None, template: Template, max_length: int
) -> Encodings:
    """Whole texts, or pairs, of their ids without special tokens, with `Encodings.divided`.

    Of a pair that has more than `max_length` tokens the longer text is divided; the other one is
    cut to half of the room.
    """
    before, between, after, in_first, one_type, _ = template
    room = max_length - len(before) - len(after) - (0 if seconds is None else len(between))
    if room < 1:
        raise UserError(f"max_length is {max_length}; special tokens alone need as many")
    if seconds is None:
        encodings = assemble(firsts, None, template, WHOLE)
        ends = encodings.lengths - len(after)
        spans = np.stack([np.full_like(ends, len(before)), ends], 1).astype(np.int32)
        return encodings._replace(divided=spans)
    ids, first_lengths, divided, truncated = [], [], [], 0
    for first, second in zip(firsts, seconds):
        is_second = len(second) >= len(first)
        shorter = first if is_second else second
        if len(first) + len(second) > room and len(shorter) > room // 2:
            truncated += 1
            shorter = template.cut(shorter, room // 2)
            first, second = (shorter, second) if is_second else (first, shorter)
        ids.append(np.array([*before, *first, *between, *second, *after], np.int32))
        end = len(before) + len(first)
        first_lengths.append(len(ids[-1]) if one_type else end + in_first)
        span = (end + len(between), len(ids[-1]) - len(after)) if is_second else (len(before), end)
        divided.append(span)
    spans = np.array(divided, np.int32).reshape(-1, 2)
    return Encodings(ids, np.array(first_lengths, np.int32), truncated, divided=spans)


def _counted(max_length: int) -> int:
    return max(max_length + 1, COUNTED)


def run(encode: Callable[..., list[Any]], texts: list[str]) -> list[Any]:
    """The library's encodings of texts. UserError for half of a surrogate pair."""
    try:
        return encode(texts, add_special_tokens=False)
    except (TypeError, UnicodeEncodeError):  # which of them depends on the library's version
        for number, text in enumerate(texts):
            if isinstance(text, str) and HALF_PAIR.search(text):
                raise UserError(
                    f"text {number + 1} of {len(texts)} holds half of a surrogate pair, "
                    "which is no character; remove it"
                ) from None
        raise


class Tokenizer(ABC):
    """Texts → token ids. A kind is a class below this one that is registered.

    Instances can be pickled: processes that read for a trainer are given one.
    """

    kind: ClassVar[str]
    # Whether the C++ programs tokenize from its files in a bundle, and find the words of a text.
    on_boards: ClassVar[bool] = False
    has_fields: ClassVar[bool] = False  # it reads rows of `data.fields`, not texts

    spec: Spec  # what opens it again
    vocab_size: int
    pad_id: int
    unk_id: int
    cls_id: int  # before a text
    sep_id: int  # after it
    mask_id: int
    special_ids: tuple[int, ...]  # of all tokens that no text can spell

    @classmethod
    @abstractmethod
    def find(cls, folder: Path) -> Spec | None:
        """That of a model's folder in Hugging Face's layout; None if its tokenizer is of another
        kind."""

    @classmethod
    @abstractmethod
    def open(cls, spec: Spec) -> Tokenizer:
        """Read the files. UserError for what is wrong with them."""

    @abstractmethod
    def encode(self, texts_a: list[str], texts_b: list[str] | None, max_length: int) -> Encodings:
        """Encode texts, or pairs if `texts_b` is given, to at most `max_length` tokens each. Safe
        to call from several threads."""

    def encode_whole(
        self,
        texts_a: list[str],  # noqa: ARG002  kinds that can, override it
        texts_b: list[str] | None,  # noqa: ARG002
        max_length: int,  # noqa: ARG002
    ) -> Encodings:
        """All tokens of texts, or pairs, see `assemble_whole`."""
        raise UserError(
            f"data.long_texts: the tokenizer ({self.kind}) of this model only cuts long texts; "
            "set it to cut, or choose another model"
        )

    def encode_with_offsets(
        self,
        texts: list[str],  # noqa: ARG002  kinds that can, override it
        max_length: int,  # noqa: ARG002
    ) -> tuple[Encodings, list[np.ndarray]]:
        """The same of texts, and for each int32 [tokens, 2], the characters where each token begins
        and ends in the text; 0, 0 for special tokens. A token may have blanks before its word, and
        a character that takes several tokens is in all of them."""
        raise UserError(
            f"model.init: its tokenizer ({self.kind}) does not tell where tokens stand in texts, "
            "which spans need; choose another model"
        )

    def token(self, number: int) -> str:  # noqa: ARG002
        """How the vocabulary writes a token; "" where a kind does not tell."""
        return ""

    def needed(self, wanted: np.ndarray) -> np.ndarray:
        """bool [vocab_size]: the wanted tokens, and those without which texts would not become
        them."""
        return wanted

    def write_trimmed(self, kept: np.ndarray, folder: Path) -> None:  # noqa: ARG002
        """Write the files of a tokenizer that has only these ids (int64, ascending), which become
        0, 1, ..."""
        raise UserError(
            f"vocabulary: a tokenizer of the kind {self.kind} cannot be trimmed; leave "
            "vocabulary.data out"
        )

    @classmethod
    @abstractmethod
    def save(cls, spec: Spec, folder: Path) -> None:
        """Write the files that `find`, and transformers, look for in a model's folder."""

    @classmethod
    def with_defaults(cls, spec: Spec) -> Spec:
        """With the settings that neither the folder nor the job named; tells them in the log."""
        return spec

    @classmethod
    def settings_in_full(cls, spec: Spec) -> dict[str, Setting]:
        """All settings, with those that a spec need not name."""
        return dict(spec.settings)

    @cached_property
    def is_subword(self) -> np.ndarray:
        """bool [vocab_size]: whether a token continues a word, for masking of whole words."""
        return np.zeros(self.vocab_size, bool)

    @cached_property
    def ordinary_ids(self) -> np.ndarray:
        """int64 ids of the tokens that are not special, ascending."""
        return np.setdiff1d(np.arange(self.vocab_size), self.special_ids)


class OfLibrary(Tokenizer):
    """A kind whose texts go through Hugging Face's library `tokenizers`."""

    _library: tokenizers.Tokenizer
    template: Template
    _may_cut = True  # the first ids of a long text can be told from its beginning

    @abstractmethod
    def __init__(self, spec: Spec): ...

    @classmethod
    def open(cls, spec: Spec) -> Tokenizer:
        return cls(spec)

    def token(self, number: int) -> str:
        return self._library.id_to_token(number) or ""

    @cached_property
    def _encode(self) -> Callable[..., list[Any]]:
        """The fast one does not compute offsets; versions before 0.20 do not have it."""
        return getattr(self._library, "encode_batch_fast", self._library.encode_batch)

    def encode(self, texts_a: list[str], texts_b: list[str] | None, max_length: int) -> Encodings:
        # Enough to know whether a text is truncated, and which of two is the longer one.
        most = max_length + 1 if texts_b is None else _counted(max_length)
        most = sys.maxsize if self.template.left else most
        seconds = None if texts_b is None else self._pieces(texts_b, most)
        return assemble(self._pieces(texts_a, most), seconds, self.template, max_length)

    def encode_whole(
        self, texts_a: list[str], texts_b: list[str] | None, max_length: int
    ) -> Encodings:
        firsts, seconds = (
            None if texts is None else self._pieces(texts, WHOLE) for texts in (texts_a, texts_b)
        )
        assert firsts is not None
        return assemble_whole(firsts, seconds, self.template, max_length)

    def encode_with_offsets(
        self, texts: list[str], max_length: int
    ) -> tuple[Encodings, list[np.ndarray]]:
        encode = self._library.encode_batch
        most = sys.maxsize if self.template.left else max_length + 1
        encoded = self._of_texts(texts, encode, lambda text: self._first(text, most, encode))
        ids = [self._allowed(encoding.ids) for encoding in encoded]
        together = assemble_whole if max_length == WHOLE else assemble
        encodings = together(ids, None, self.template, max_length)
        first = len(self.template.before)
        offsets = [np.zeros((len(ids), 2), np.int32) for ids in encodings.ids]
        for places, encoding in zip(offsets, encoded):
            room = len(places) - first - len(self.template.after)
            kept = self.template.cut(encoding.offsets, room)
            places[first : first + len(kept)] = np.array(kept, np.int32).reshape(-1, 2)
        return encodings, offsets

    def _pieces(self, texts: list[str], most: int) -> list[list[int]]:
        """The ids of each text: all, or at least the first `most`."""
        encoded = self._of_texts(texts, self._encode, lambda text: self._first_ids(text, most))
        return [
            self._allowed(encoding if isinstance(encoding, list) else encoding.ids)
            for encoding in encoded
        ]

    def _of_texts(
        self, texts: list[str], encode: Callable[..., list[Any]], first: Callable[[str], Any]
    ) -> list[Any]:
        """What the library makes of texts, and `first` of long ones."""
        long = [self._may_cut and isinstance(text, str) and len(text) > LONG for text in texts]
        encoded = run(encode, ["" if is_long else text for text, is_long in zip(texts, long)])
        if any(long):
            run(lambda texts, **_: [text.encode() for text in texts], texts)  # half pairs anywhere
        for number in itertools.compress(range(len(texts)), long):
            encoded[number] = first(texts[number])
        return encoded

    @abstractmethod
    def _first(self, text: str, most: int, encode: Callable[..., list[Any]]) -> Any:
        """The library's encoding of a long text, of at least the first `most` tokens."""

    def _first_ids(self, text: str, most: int) -> list[int]:
        ids: list[int] = self._first(text, most, self._encode).ids
        return ids

    def _allowed(self, ids: list[int]) -> list[int]:
        """Ids that a text may have."""
        return ids
