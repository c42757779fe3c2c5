"""Exact match and F1 of an answer's text, as the official scripts count them: SQuAD's (1.1 and 2.0)
for texts with blanks between words, CMRC 2018's for Chinese."""

from __future__ import annotations

import re
import string
from collections import Counter
from difflib import SequenceMatcher
from itertools import groupby
from typing import Sequence

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
IDEOGRAPH = re.compile("[\u4e00-\u9fa5]")  # as CMRC's script has it
# What CMRC's script leaves out.
CHINESE_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
# What CMRC's script splits with NLTK: words without the marks that NLTK takes from them.
MARKS = r'[;@#$%&?!\[\](){}<>"]|\.{2,}|,(?!\d)|\.(?=[\])}>"]*$)'
WORDS = re.compile(rf"{MARKS}|(?:(?!{MARKS})\S)+")
# A context is Chinese if so many of its characters are ideographs.
CHINESE_SHARE = 0.1


def is_chinese(context: str) -> bool:
    return len(IDEOGRAPH.findall(context)) >= CHINESE_SHARE * len(context)


def scores(answers: Sequence[str], given: str, chinese: bool) -> tuple[bool, float]:
    """Exact match, and F1 from 0 to 1, beside the answer that each is best for.

    answers: none where the question has none; given: "" for none.
    """
    normalize, f1 = (_normalize_chinese, _f1_chinese) if chinese else (_normalize, _f1_of_words)
    expected = [answer for answer in map(normalize, answers) if answer] or [""]
    given = normalize(given)
    exact = given in expected
    if not given or expected == [""]:
        return exact, float(exact)
    return exact, max(f1(answer, given) for answer in expected)


def _normalize(text: str) -> str:
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def _f1_of_words(expected: str, given: str) -> float:
    words = [text.split() for text in (expected, given)]
    common = sum((Counter(words[0]) & Counter(words[1])).values())
    return 2 * common / sum(map(len, words))


def _normalize_chinese(text: str) -> str:
    return text.lower().strip().translate(CHINESE_PUNCTUATION)


def _f1_chinese(expected: str, given: str) -> float:
    """Of the longest piece that both share, in segments: ideographs, and words of other scripts."""
    first, second = _segments(expected), _segments(given)
    matcher = SequenceMatcher(None, first, second, autojunk=False)
    common = matcher.find_longest_match(0, len(first), 0, len(second)).size
    return 2 * common / (len(first) + len(second))


def _segments(text: str) -> list[str]:
    segments: list[str] = []
    for is_ideograph, run in groupby(text, lambda character: bool(IDEOGRAPH.match(character))):
        characters = "".join(run)
        segments += characters if is_ideograph else WORDS.findall(characters)
    return segments
