"""Exact match and F1 beside an independent transcription of the official scripts' definitions."""

from __future__ import annotations

import re
import string
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetbert.tasks.question_answering import scoring


def normalized(text):
    """SQuAD: lower case, no punctuation, no articles, single blanks."""
    kept = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(word for word in re.split(r"\s+", kept) if word not in ("a", "an", "the", ""))


def squad(answers, prediction):
    """SQuAD 2.0, of which 1.1 is the part whose questions all have answers."""
    answers = [answer for answer in answers if normalized(answer)] or [""]
    scores = []
    for answer in answers:
        expected, given = (normalized(text).split() for text in (answer, prediction))
        common = sum((Counter(expected) & Counter(given)).values())
        if not expected or not given:
            scores.append(float(expected == given))
        elif not common:
            scores.append(0.0)
        else:
            precision, recall = common / len(given), common / len(expected)
            scores.append(2 * precision * recall / (precision + recall))
    return any(normalized(prediction) == normalized(answer) for answer in answers), max(scores)


LEFT_OUT = [*"-:_*^/\\~`+=，。：？！“”；’《》", "……", *"·、「」（）－～『』"]


def segments(text):
    """CMRC 2018: ideographs one by one, and the words between them. Words that NLTK would divide
    are not among the examples."""
    found, word = [], ""
    for character in text.lower().strip():
        if character in LEFT_OUT:
            continue
        if re.search("[\u4e00-\u9fa5]", character):
            found += word.split()
            found.append(character)
            word = ""
        else:
            word += character
    return found + word.split()


def cmrc(answers, prediction):
    def bare(text):
        return "".join(c for c in text.lower().strip() if c not in LEFT_OUT)

    best = 0.0
    for answer in answers:
        first, second = segments(answer), segments(prediction)
        longest = max(
            (
                size
                for at in range(len(first))
                for size in range(1, len(first) - at + 1)
                if any(first[at : at + size] == second[n : n + size] for n in range(len(second)))
            ),
            default=0,
        )
        if longest:
            precision, recall = longest / len(second), longest / len(first)
            best = max(best, 2 * precision * recall / (precision + recall))
    return any(bare(answer) == bare(prediction) for answer in answers), best


def texts(words, joined):
    return st.lists(st.sampled_from(words), min_size=1, max_size=7).map(joined.join)


ENGLISH = texts(
    ["the", "The", "a", "cat", "Cat.", "can't", "U.S.", "1,000", "-", "é", " ", "an"], " "
)
CHINESE = texts(["的", "字", "，", "……", "《", "BERT", "3.5", " ", "2018年", "-", "句"], "")


@pytest.mark.parametrize(
    ("reference", "chinese", "some"), [(squad, False, ENGLISH), (cmrc, True, CHINESE)]
)
def test_scores_are_those_of_the_official_definitions(reference, chinese, some):
    @given(st.lists(some, min_size=1, max_size=3), some)
    def check(answers, prediction):
        if chinese:  # which has no questions without an answer
            answers = [answer for answer in answers if segments(answer)] or ["字"]
        expected = reference(answers, prediction)
        assert scoring.scores(answers, prediction, chinese) == pytest.approx(expected)

    check()


def test_no_answer_is_right_where_none_is_expected():
    for chinese in (False, True):
        assert scoring.scores([], "", chinese) == (True, 1.0)
        assert scoring.scores([], "cat", chinese) == (False, 0.0)
        assert scoring.scores(["cat"], "", chinese) == (False, 0.0)
    assert scoring.scores(["the"], "", chinese=False) == (True, 1.0)  # as the script has it


def test_words_of_other_scripts_are_divided_as_nltk_does():
    for text, expected in [
        ("U.S. (1,000)", ["U.S.", "(", "1,000", ")"]),
        ("one, two.", ["one", ",", "two", "."]),
        ("5%在", ["5", "%", "在"]),
    ]:
        assert scoring._segments(text) == expected


def test_chinese_is_told_by_the_context():
    assert scoring.is_chinese("2018年，Google发布了BERT。它很有名。")
    assert not scoring.is_chinese("In Chinese the word for character is 字 (zì), and it is old.")
