"""What can be wrong with a table besides its labels' meaning: doubles, leaks, texts that were cut,
other scripts, and labels that are rare or spelled in two ways."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from typing import Iterator, NamedTuple, Sequence

import numpy as np

from fleetbert.data.labels import plain
from fleetbert.data.records import Example
from fleetbert.data.tokenizers import Tokenizer
from fleetbert.labelling.vectors import alike

ALIKE = 0.97  # cosine above which two texts say the same
FEW = 5  # texts of a label, below which it is rare
USUAL_SHARE = 0.9  # of the texts, in the table's script
MANY_TOKENS = 2.0  # times the usual tokens of a word
LEAST_WORDS = 4  # of a text whose tokens are counted
WHOLE = 1 << 20  # tokens: no text is longer


class Issue(NamedTuple):
    """line: of the table, from 1. worth: from 0 to 1, how much there is to gain by a look at it.
    suggestion: a label; "" where none is suggested."""

    worth: float
    line: int
    kind: str
    reason: str
    suggestion: str = ""


# By how much each kind is worth a look; wrong and doubtful labels have their probability.
WORTH = {
    "invalid": 1.0,
    "leak": 1.0,
    "conflict": 0.9,
    "spelling": 0.8,
    "no words": 0.8,
    "rare label": 0.7,
    "script": 0.6,
    "near conflict": 0.5,
    "near leak": 0.5,
    "language": 0.4,
    "duplicate": 0.3,
    "truncated": 0.2,
    "near duplicate": 0.1,
}


def issue(kind: str, line: int, reason: str, suggestion: str = "") -> Issue:
    return Issue(WORTH[kind], line, kind, reason, suggestion)


def doubles(examples: Sequence[Example], vectors: np.ndarray) -> Iterator[Issue]:
    """Texts that stand in the table twice, or nearly. Of equal texts, the first that has their most
    frequent label is left out."""
    places = defaultdict(list)
    for place, example in enumerate(examples):
        places[text_key(example)].append(place)
    repeated = set()
    for equal in places.values():
        labels = [examples[place].label for place in equal]
        usual = Counter(labels).most_common(1)[0][0]
        kept = examples[equal[labels.index(usual)]]
        for example in (examples[place] for place in equal):
            if example is kept:
                continue
            repeated.add(example.line)
            reason = f"is the text of line {kept.line}"
            if example.label == usual:
                yield issue("duplicate", example.line, reason)
            else:
                yield issue("conflict", example.line, f"{reason}, whose label is {usual!r}")
    for place, other, cosine in alike(vectors, None, ALIKE):
        if examples[place].line in repeated:
            continue
        known, same = examples[other], examples[other].label == examples[place].label
        reason = f"is nearly the text of line {known.line} (cosine {cosine:.3f})"
        reason += "" if same else f", whose label is {known.label!r}"
        yield issue("near duplicate" if same else "near conflict", examples[place].line, reason)


def leaks(
    examples: Sequence[Example],
    dev: Sequence[Example],
    vectors: np.ndarray,
    dev_vectors: np.ndarray,
    path: str,
) -> Iterator[Issue]:
    """Texts of the table that stand in the dev table too, and dev labels that the table lacks."""
    lines = {text_key(example): example.line for example in reversed(dev)}
    for example in examples:
        if (line := lines.get(text_key(example))) is not None:
            yield issue("leak", example.line, f"is the text of {path}:{line}")
    for place, other, cosine in alike(vectors, dev_vectors, ALIKE):
        if text_key(examples[place]) not in lines:
            reason = f"is nearly the text of {path}:{dev[other].line} (cosine {cosine:.3f})"
            yield issue("near leak", examples[place].line, reason)


def unknown_labels(dev: Sequence[Example], labels: Sequence[str]) -> dict[str, list[int]]:
    """The lines of the dev table by those of their labels that are not among `labels`."""
    lines = defaultdict(list)
    for example in dev:
        if example.label not in labels:
            lines[example.label or ""].append(example.line)
    return dict(lines)


def spellings(labels: Sequence[str], counts: np.ndarray) -> dict[str, str]:
    """The labels that differ from a more frequent one by case, blanks, width or Unicode form only,
    with it."""
    groups = defaultdict(list)
    for number, label in enumerate(labels):
        groups[plain(label)].append(number)
    best = {key: max(group, key=lambda number: counts[number]) for key, group in groups.items()}
    return {
        labels[number]: labels[best[key]]
        for key, group in groups.items()
        for number in group
        if number != best[key]
    }


def of_labels(
    examples: Sequence[Example], labels: Sequence[str], counts: np.ndarray
) -> Iterator[Issue]:
    other = spellings(labels, counts)
    texts = dict(zip(labels, counts.tolist()))
    for example in examples:
        label = example.label or ""
        if label in other:
            usual = other[label]
            look_alike = unicodedata.normalize("NFC", label) == unicodedata.normalize("NFC", usual)
            show = ascii if look_alike else repr
            reason = f"{show(label)} is written {show(usual)} in {texts[usual]} other rows"
            yield issue("spelling", example.line, reason, usual)
        elif texts[label] < FEW:
            few = f"{texts[label]} of {len(examples)} texts"
            reason = f"{label!r} is the label of only {few}, too few to judge it"
            yield issue("rare label", example.line, reason)


def of_texts(examples: Sequence[Example], tokenizer: Tokenizer, max_length: int) -> Iterator[Issue]:
    """Texts that are cut, have no words, or are in another script or language than the others."""
    texts = [" ".join(filter(None, (example.text_a, example.text_b))) for example in examples]
    lengths = tokenizer.encode(texts, None, WHOLE).lengths
    scripts = [_script(text) for text in texts]
    usual, count = Counter(filter(None, scripts)).most_common(1)[0] if any(scripts) else ("", 0)
    words = np.array([len(text.split()) for text in texts])
    rates = lengths / np.maximum(words, 1)
    usual_rate = float(np.median(rates))
    for place, example in enumerate(examples):
        script, line = scripts[place], example.line
        if lengths[place] > max_length:
            lost = f"has {lengths[place]} tokens, of which data.max_length keeps {max_length}"
            yield issue("truncated", line, lost)
        if not script:
            yield issue("no words", line, "has no letter in it")
        elif script != usual and count >= USUAL_SHARE * len(texts):
            yield issue("script", line, f"is in {script}, {count} of {len(texts)} texts in {usual}")
        elif words[place] >= LEAST_WORDS and rates[place] > MANY_TOKENS * usual_rate:
            reason = f"has {rates[place]:.1f} tokens a word, the table {usual_rate:.1f}: another "
            yield issue("language", line, f"{reason}language, or no language?")


def text_key(example: Example) -> tuple[str, str]:
    """Equal for texts that differ by case, width or blanks only."""
    first, second = (
        " ".join(unicodedata.normalize("NFKC", text or "").casefold().split())
        for text in (example.text_a, example.text_b)
    )
    return first, second


def _script(text: str) -> str:
    """The script of most letters: LATIN, CYRILLIC, CJK …; "" without letters."""
    letters = Counter(re.findall(r"[^\W\d_]", text))
    scripts: Counter[str] = Counter()
    for letter, count in letters.items():
        scripts[_script_of(letter)] += count
    return scripts.most_common(1)[0][0] if scripts else ""


def _script_of(letter: str) -> str:
    name = unicodedata.name(letter, "")
    first = name.split(" ")[0].split("-")[0]
    # Japanese and Chinese texts are told apart by vectors, if at all; full-width Latin is Latin.
    japanese = {"HIRAGANA": "CJK", "KATAKANA": "CJK", "HALFWIDTH": "CJK", "FULLWIDTH": "LATIN"}
    return japanese.get(first, first)
