"""What a user should know of a table's labels before anything is learned from them."""

from __future__ import annotations

import re
import unicodedata
from typing import Iterable, Sequence

import numpy as np

from fleetbert.core.errors import UserError
from fleetbert.data import in_memory, written

MOST_SHOWN = 8
LEAST_TEXTS = 6  # of a label, on average

_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?", re.ASCII)
_FRACTION = re.compile(r"[+-]?(\d*[.,]\d+|\d+[.,]|\d+(\.\d*)?[eE][+-]?\d+)")


def in_order(labels: Iterable[str]) -> list[str]:
    """Each label once: as numbers where all are (2 before 10), else as text."""
    names = sorted(set(labels))
    numbers = all(_NUMBER.fullmatch(label) for label in names)
    return sorted(names, key=float) if numbers else names


def given(labels: Iterable[object]) -> list[str]:
    """The labels that a caller names, as tables write them: integers and booleans as text.
    UserError for what is no label or is there twice."""
    names = []
    for number, label in enumerate(labels):
        try:
            name = written.name(in_memory.unboxed(label))
        except written.LineError as error:
            raise UserError(f"labels[{number}]: {error}") from None
        if not name:
            raise UserError(f"labels[{number}]: is empty; give each label a name")
        if name in names:
            raise UserError(f"labels: {name!r} occurs twice; name each label once")
        names.append(name)
    return names


def describe(labels: Sequence[str], counts: np.ndarray) -> str:
    """How many there are, and the most frequent and rarest; counts: int64 [labels], of texts."""
    order = np.argsort(-counts, kind="stable").tolist()
    each = [f"{_quoted(labels[number])} {counts[number]}" for number in order]
    frequent = each[:-1] if len(each) <= MOST_SHOWN else [*each[: MOST_SHOWN - 2], "..."]
    return f"{len(labels)} labels: {', '.join([*frequent, f'rarest {each[-1]}'])}"


def explained(values: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of the variance of `values` (texts) that their labels explain (Pearson's
    correlation ratio, squared): 0 to 1. labels: int (texts)."""
    counts = np.bincount(labels)
    means = np.bincount(labels, values) / np.maximum(counts, 1)
    variance = values.var()
    return 1 - float(np.mean((values - means[labels]) ** 2) / variance) if variance else 0.0


def warnings(labels: Sequence[str], counts: np.ndarray) -> list[str]:
    """What looks like a mistake; arguments as in `describe`."""
    lines = []
    spellings: dict[str, list[str]] = {}
    for label, count in zip(labels, counts.tolist()):
        spellings.setdefault(plain(label), []).append(f"{_quoted(label)} {count}")
    alike = [" and ".join(group) for group in spellings.values() if len(group) > 1]
    if alike:
        lines.append(
            f"labels that differ by case or blanks only: {_few(alike)}; each is a class of its "
            "own: write them alike if they mean the same"
        )
    fractions = [_quoted(label) for label in labels if _FRACTION.fullmatch(label)]
    if fractions:
        lines.append(
            f"labels that are numbers with fractions: {_few(fractions)}; each is a class of its "
            "own: name task.name: regression to learn numbers, or write names for classes"
        )
    texts = int(counts.sum())
    if len(labels) * LEAST_TEXTS > texts:
        lines.append(
            f"{len(labels)} labels for {texts} texts are more than one for {LEAST_TEXTS} texts: "
            "does the column label hold classes?"
        )
    return lines


def plain(label: str) -> str:
    """Without blanks, case and differences of width: the same of labels that look alike."""
    return "".join(unicodedata.normalize("NFKC", label).casefold().split())


def alike(label: str, labels: Sequence[str]) -> str:
    """The first of `labels` that differs by case or blanks only, as the end of a sentence that
    says that `label` is not known; "" if there is none."""
    near = next((known for known in labels if plain(known) == plain(label)), None)
    return "" if near is None else f" (is it {near!r}, written otherwise?)"


def _quoted(label: str) -> str:
    return repr(label if len(label) <= 40 else label[:39] + "…")


def _few(shown: Sequence[str]) -> str:
    return ", ".join(shown[:MOST_SHOWN]) + (", ..." if len(shown) > MOST_SHOWN else "")
