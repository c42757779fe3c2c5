"""What `fleetbert audit` says of single rows, without an encoder."""

from __future__ import annotations

import string
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_bert

from fleetbert.data import tokenizers
from fleetbert.data.records import Example
from fleetbert.labelling import checks, vectors

TEXTS = [" ".join(tiny_bert.WORDS[n : n + 5]) for n in range(40)]


def examples(*texts: str, labels: str = "") -> list[Example]:
    """The texts in lines from 2 on; labels: a letter for each."""
    labels = labels or "a" * len(texts)
    return [Example(text, None, *pair) for text, *pair in zip(texts, labels, range(2, 999))]


def unit(*rows: tuple[float, float]) -> np.ndarray:
    points = np.array(rows, np.float32)
    return points / np.linalg.norm(points, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    letters = [mark + letter for mark in ("", "##") for letter in string.ascii_lowercase]
    path.write_text("\n".join([*tiny_bert.VOCAB, *letters]) + "\n", encoding="utf-8")
    return tokenizers.open(tokenizers.of_vocab(path, True))


def kinds(issues) -> list[tuple[int, str]]:
    return [(row.line, row.kind) for row in issues]


def test_a_text_is_compared_with_those_before_it():
    some = examples("one", "two", "ＯＮＥ ", "three", "four", labels="aabba")
    points = unit((1, 0), (0, 1), (1, 0), (0, 1.01), (0.01, 1))
    found = kinds(checks.doubles(some, points))
    assert found == [(4, "conflict"), (5, "near conflict"), (6, "near duplicate")]


def test_a_leak_is_told_once():
    some, points = examples("one", "two", "three"), unit((1, 0), (0, 1), (1, 1))
    dev, dev_points = examples("One", "zwei"), unit((1, 0), (0.01, 1))
    found = list(checks.leaks(some, dev, points, dev_points, "dev.tsv"))
    assert kinds(found) == [(2, "leak"), (3, "near leak")]
    assert found[0].reason == "is the text of dev.tsv:2"
    assert checks.unknown_labels(examples("x", "y", "z", labels="aba"), ["a"]) == {"b": [3]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("qzx jqv xqz vqj", ["language"]),  # a token for each letter
        ("qzx jqv xqz", []),  # too few words to say
        ("слово", ["script"]),
        ("12 - 14", ["no words"]),
        ("ｗｏｒｄ１", []),  # full-width Latin
        (" ".join(tiny_bert.WORDS[:20]), ["truncated"]),
    ],
)
def test_a_text_unlike_the_others(tokenizer, text, expected):
    some = examples(*TEXTS, text)
    assert kinds(checks.of_texts(some, tokenizer, 16)) == [(42, kind) for kind in expected]


def test_scripts_are_only_told_apart_where_one_is_usual(tokenizer):
    some = examples(*TEXTS[:3], "слово")
    assert kinds(checks.of_texts(some, tokenizer, 16)) == []
    some = examples("字字", "カタ", "ｶﾀ", "字", "ひら")
    assert kinds(checks.of_texts(some, tokenizer, 16)) == []


def test_a_pair_is_like_another_if_both_texts_are(monkeypatch):
    known = {"x": (1.0, 0.0), "y": (0.0, 1.0), "z": (0.6, 0.8)}
    monkeypatch.setattr(
        vectors, "encode", lambda _, texts: np.array([known[text] for text in texts], np.float32)
    )
    some = [Example(*pair, "a", 2) for pair in ("xx", "xy", "xz")]
    points = vectors.encode_examples(SimpleNamespace(), some, pair=True)
    np.testing.assert_allclose(points @ points[0], [1, 0.5, 0.8], atol=1e-6)
    inputs = vectors.inputs_of(points, pair=True)
    apart = [[0, 0], [1, 1], [0.4, 0.8]]
    np.testing.assert_allclose(inputs[:, 4:] * np.sqrt(2), apart, atol=1e-6)
