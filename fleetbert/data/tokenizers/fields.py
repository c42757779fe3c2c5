"""Rows of fixed fields as the integers that engines take: see `data.fields`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np

from fleetbert.core.errors import UserError
from fleetbert.data import fields
from fleetbert.data.tokenizers.base import Encodings, Spec, Tokenizer

FILE = "fields.json"
# What a bundle's file says of its rows. `hash`: of `data.hashed_ids`.
KNOWN = {"numbers": fields.NUMBERS, "categories": fields.CATEGORIES, "hash": "fnv1a-splitmix64"}


SPEC = Spec("fields", {}, {})  # of rows that this version reads


def write(folder: Path) -> Spec:
    """Write the file of a bundle; returns what opens it."""
    (folder / FILE).write_text(json.dumps(KNOWN) + "\n", encoding="utf-8")
    return Spec(Fields.kind, {FILE: folder / FILE}, {})


class Fields(Tokenizer):
    """A row has no tokens: `encode` packs it into `fields.WORDS` integers."""

    kind = "fields"
    has_fields = True

    def __init__(self, spec: Spec):
        self.spec = spec
        self.vocab_size = 1 << 32
        self.pad_id = self.unk_id = self.cls_id = self.sep_id = self.mask_id = 0
        self.special_ids = ()

    @classmethod
    def find(cls, folder: Path) -> Spec | None:  # noqa: ARG003
        return None

    @classmethod
    def open(cls, spec: Spec) -> Tokenizer:
        path = spec.files.get(FILE)
        if path is None:
            return cls(spec)
        try:
            says = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read ({error}): copy the bundle again") from None
        if says != KNOWN:
            raise UserError(
                f"{path} says {says}, and this fleetbert reads rows of {KNOWN}: install the "
                "fleetbert that wrote the bundle"
            )
        return cls(spec)

    def encode(self, texts_a: list[str], texts_b: list[str] | None, max_length: int) -> Encodings:  # noqa: ARG002
        """UserError at a line that is no row, with its number from 1."""
        lines = [text.encode("utf-8", "surrogateescape") for text in texts_a]
        rows = [fields.split(line, labelled=False) for line in lines]
        try:
            words = fields.pack(*fields.parse(rows))
        except ValueError:
            for number, row in enumerate(rows, 1):
                reason = fields.problem(row, labelled=False)
                if reason:
                    raise UserError(f"row {number} of {len(rows)} {reason}") from None
            raise
        return Encodings(list(words), np.full(len(words), fields.WORDS, np.int32), 0)

    def encode_with_offsets(
        self,
        texts: list[str],  # noqa: ARG002
        max_length: int,  # noqa: ARG002
    ) -> tuple[Encodings, list[np.ndarray]]:
        raise UserError("the model answers rows of fields, which have no tokens")

    @classmethod
    def save(cls, spec: Spec, folder: Path) -> None:
        shutil.copyfile(spec.files[FILE], folder / FILE)
