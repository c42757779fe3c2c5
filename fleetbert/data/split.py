"""The tokenized texts of one table."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Callable, List, NamedTuple, Optional, Sequence

import numpy as np

from fleetbert.core.errors import UserError
from fleetbert.core.reading import Reading
from fleetbert.data import windows
from fleetbert.data.labels import alike
from fleetbert.data.read import Table
from fleetbert.data.rows import Rows
from fleetbert.data.tokenizers import Encodings, Tokenizer


class Split(NamedTuple):
    """Texts of one table, tokenized. Its arrays are in memory, or mapped from the token cache."""

    name: str
    encodings: Encodings
    # [texts, ...], what is learned of each: at first int64 [texts], numbers of labels as they are
    # written, then what a task makes of these (`with_targets`); zeros where there are none
    labels: np.ndarray
    skipped: int  # bad lines left out
    lines: np.ndarray  # int64 [texts], where each text stands in its file, from 1
    fingerprint: str | None = None  # as `fingerprint` gives it, where it is known already
    folder: Path | None = None  # of the token cache it is mapped from

    def counts(self) -> dict[str, int]:
        truncated = self.encodings.truncated
        return {"texts": len(self.labels), "truncated": truncated, "skipped_lines": self.skipped}


# Of a tokenizer, texts and second texts.
Encode = Callable[[Tokenizer, List[str], Optional[List[str]], Reading], Encodings]


def tokenize(
    name: str,
    table: Table,
    tokenizer: Tokenizer,
    pair: bool,
    labelled: bool,
    reading: Reading,
    encode: Encode = windows.encode,
) -> tuple[Split, list[str]]:
    """The split of a table, and the names of its labels in order (not `labelled`: none).

    With `pair` every text has a second one. encode: as the task has it, which may need words too.
    """
    texts_b = [example.text_b or "" for example in table.examples] if pair else None
    texts = [example.text_a for example in table.examples]
    encodings = encode(tokenizer, texts, texts_b, reading)
    labels = np.zeros(len(texts), np.int64)
    names: list[str] = []
    if labelled:
        given = [example.label or "" for example in table.examples]
        names = sorted(set(given))
        numbers = {label: number for number, label in enumerate(names)}
        labels = np.fromiter((numbers[label] for label in given), np.int64, len(texts))
    lines = np.fromiter((example.line for example in table.examples), np.int64, len(texts))
    return Split(name, encodings, labels, len(table.skipped), lines), names


def with_targets(
    split: Split,
    split_labels: Sequence[str],
    labels: Sequence[str],
    targets: np.ndarray,
    unknown: Sequence[str | None],
) -> Split:
    """The split with what a task makes of its written labels `own`: targets [own, ...] for their
    numbers.

    unknown: for each of `own` a label in it that is not among the training `labels`; UserError with
    the line of the first text that has one.
    """
    bad = np.array([label is not None for label in unknown], bool)
    if bad.any() and bad[split.labels].any():
        text = int(np.argmax(bad[split.labels]))
        label = unknown[split.labels[text]] or ""
        raise UserError(
            f"{split.name}:{split.lines[text]}: label {label!r}{alike(label, labels)} is not among "
            f"the training labels {', '.join(labels[:20])}"
        )
    if targets.ndim == 1 and targets.dtype == np.int64:
        return split._replace(labels=targets[split.labels])
    digest = hashlib.sha256(f"{fingerprint(split)}{json.dumps(list(split_labels))}".encode())
    return split._replace(labels=targets[split.labels], fingerprint=digest.hexdigest())


class Chosen(Rows):
    """Some of a sequence's token ids; those of a mapped one are not read before they are asked."""

    def __init__(self, ids: Sequence[np.ndarray], texts: np.ndarray):
        self.ids, self.texts = ids, texts

    def __len__(self) -> int:
        return len(self.texts)

    def row(self, number: int) -> np.ndarray:
        return self.ids[int(self.texts[number])]


def hold_out(
    split: Split, share: float, seed: int, groups: np.ndarray | None = None
) -> tuple[Split, Split]:
    """The split without a share (0 to 1) of its texts, drawn by chance, and these texts. groups: of
    each text, where those of a group stay together; the share is then of groups.

    What was cut and skipped is counted with the first. UserError if one of them would have no text.
    """
    units, kind = np.arange(len(split.labels)), "texts"
    if groups is not None:
        units, kind = np.unique(groups, return_inverse=True)[1].reshape(-1), "examples"
    texts = int(units.max(initial=-1)) + 1
    count = round(share * texts)
    if not 0 < count < texts:
        raise UserError(
            f"{split.name}: {texts} {kind} are too few to hold out a share of {share} of them; "
            "give a table to evaluate on"
        )
    chosen = np.zeros(texts, bool)
    chosen[np.random.default_rng(seed).permutation(texts)[:count]] = True
    kept, held = (choose(split, np.flatnonzero(some[units])) for some in (~chosen, chosen))
    encodings = held.encodings._replace(truncated=0)
    name = f"{split.name}, held out"
    return kept, held._replace(name=name, encodings=encodings, skipped=0)


def choose(split: Split, texts: np.ndarray) -> Split:
    """Some of a split's texts, given by their numbers."""
    encodings, known = split.encodings, None
    if split.fingerprint is not None and split.labels.dtype.kind in "fO":  # no numbers of labels
        digest = hashlib.sha256(split.fingerprint.encode())
        digest.update(np.ascontiguousarray(texts, np.int64).data)
        known = digest.hexdigest()
    return Split(
        split.name,
        encodings._replace(
            ids=Chosen(encodings.ids, texts),
            first_lengths=encodings.first_lengths[texts],
            known_lengths=encodings.lengths[texts],
            words=None if encodings.words is None else Chosen(encodings.words, texts),
            divided=None if encodings.divided is None else encodings.divided[texts],
        ),
        split.labels[texts],
        split.skipped,
        split.lines[texts],
        known,
    )


class Fingerprint:
    """Digest of tokens and labels, given piece by piece: what data a run has seen."""

    def __init__(self) -> None:
        self.ids, self.lengths, self.labels = (hashlib.sha256() for _ in range(3))

    def add(self, ids: np.ndarray, lengths: np.ndarray, labels: np.ndarray) -> None:
        """`ids` are those of all the texts of the piece, one after the other."""
        self.ids.update(np.ascontiguousarray(ids, np.int32).data)
        self.lengths.update(np.ascontiguousarray(lengths, np.int32).data)
        self.labels.update(np.ascontiguousarray(labels, np.int64).data)

    def hexdigest(self) -> str:
        parts = (self.ids, self.lengths, self.labels)
        return hashlib.sha256(b"".join(part.digest() for part in parts)).hexdigest()


def fingerprint(split: Split) -> str:
    """Digest of the split's tokens and labels; the same whether they are cached or not."""
    if split.fingerprint is not None:
        return split.fingerprint
    digest = Fingerprint()
    lengths = split.encodings.lengths
    for start in range(0, len(lengths), 4096):
        some = slice(start, start + 4096)
        digest.add(np.concatenate(split.encodings.ids[some]), lengths[some], split.labels[some])
    return digest.hexdigest()
