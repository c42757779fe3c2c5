"""What every kind of tokenizer offers, and what one is opened from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple, Sequence

import numpy as np

from fleetbert.bundle import Setting
from fleetbert.bundle import TokenizerSpec as Spec


class Encodings(NamedTuple):
    """Token ids of texts or pairs.

    ids: one int32 array [length] a text, special tokens included; a pair is one text after the
        other.
    first_lengths: int32 [texts], how many tokens belong to segment 0.
    truncated: how many texts were cut to the maximum length.
    known_lengths: `lengths`, where they are known already.
    """

    ids: Sequence[np.ndarray]
    first_lengths: np.ndarray
    truncated: int
    known_lengths: np.ndarray | None = None

    @property
    def lengths(self) -> np.ndarray:
        """int [texts], tokens of each text."""
        if self.known_lengths is not None:
            return self.known_lengths
        return np.fromiter((len(ids) for ids in self.ids), np.int64, len(self.ids))


class Tokenizer(ABC):
    """Texts → token ids. A kind is a class below this one that is registered.

    Instances can be pickled: processes that read for a trainer are given one.
    """

    kind: ClassVar[str]

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
