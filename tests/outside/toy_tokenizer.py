"""A kind of tokenizer from outside the package: a token is what stands between spaces."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from fleetbert.data import tokenizers
from fleetbert.data.tokenizers import Encodings, Spec, Tokenizer

WORDS = "words.txt"
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")


class Spaces(Tokenizer):
    kind = "spaces"

    def __init__(self, spec: Spec):
        self.spec = spec
        words = [*SPECIAL, *spec.files[WORDS].read_text(encoding="utf-8").split()]
        self.ids = {word: number for number, word in enumerate(words)}
        self.vocab_size = len(words)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = self.special_ids = (
            0, 1, 2, 3, 4,
        )  # fmt: skip

    @classmethod
    def find(cls, folder: Path) -> Spec | None:
        words = folder / WORDS
        return Spec(cls.kind, {WORDS: words}, {"fold_case": True}) if words.is_file() else None

    @classmethod
    def open(cls, spec: Spec) -> Spaces:
        return cls(spec)

    @classmethod
    def save(cls, spec: Spec, folder: Path) -> None:
        shutil.copyfile(spec.files[WORDS], folder / WORDS)

    def encode(self, texts_a: list[str], texts_b: list[str] | None, max_length: int) -> Encodings:
        assert texts_b is None
        if self.spec.settings["fold_case"]:
            texts_a = [text.lower() for text in texts_a]
        words = [[self.ids.get(word, self.unk_id) for word in text.split()] for text in texts_a]
        room = max_length - 2
        ids = [np.array([self.cls_id, *some[:room], self.sep_id], np.int32) for some in words]
        truncated = sum(len(some) > room for some in words)
        return Encodings(ids, np.array(list(map(len, ids)), np.int32), truncated)


tokenizers.register(Spaces)
