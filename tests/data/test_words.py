"""Where tokens stand in texts, beside the library `tokenizers`, and the words that are tagged."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import random_texts
import tokenizer_files
import tokenizers as library
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.implementations import BertWordPieceTokenizer

from fleetbert.core.reading import Reading
from fleetbert.data import conll, tokenizers, words
from fleetbert.data.tokenizers import base, of_vocab

TEXTS = [
    "Paul O'Neill's U.S.-based co. (Café Zoë) paid $1,000 to e\u0301lan\u2019s \u201cteam\u201d.",
    "  two  spaces\tand a tab ",
    "上海的王明在IBM工作，1998年出生。",
    "สวัสดีชาวโลก мир 한국어 日本語のテスト",
    "RT @user: check http://t.co/x #tag 👩‍👩‍👧 naïve",
    "",
]


@pytest.fixture(params=["wordpiece", *tokenizer_files.FAMILIES])
def pair(request, tmp_path, monkeypatch):
    """One of our tokenizers, and the library's of the same files."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if request.param == "wordpiece":
        marks = "abcdefghijklmnopqrstuvwxyz上海的王明在工作年1，。.'-@#/:()$"
        vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *marks, *(f"##{m}" for m in marks)]
        vocab += ["paul", "##ne", "cafe", "team", "the", "user", "##ser"]
        path = tmp_path / "vocab.txt"
        path.write_text("\n".join(vocab) + "\n", encoding="utf-8")
        theirs = BertWordPieceTokenizer(str(path), lowercase=True)
        return tokenizers.open(of_vocab(path, True)), theirs
    spec = tokenizers.find(tokenizer_files.write(tmp_path / "model", request.param))
    return tokenizers.open(spec), library.Tokenizer.from_file(str(spec.files["tokenizer.json"]))


def test_offsets_are_those_of_the_library(pair):
    ours, theirs = pair
    texts = TEXTS + random_texts.draw(150, 5)
    encodings, offsets = ours.encode_with_offsets(texts, 512)
    plain = ours.encode(texts, None, 512)
    for text, ids, known, places in zip(texts, encodings.ids, plain.ids, offsets):
        wanted = theirs.encode(text)
        assert ids.tolist() == known.tolist()
        if not any(mark in text for mark in ("<s>", "</s>", "<mask>", "<pad>", "<unk>")):
            assert [tuple(place) for place in places.tolist()] == wanted.offsets


def test_a_long_text_has_the_offsets_of_its_first_tokens(pair, monkeypatch):
    ours, _ = pair
    text = " ".join(TEXTS) * 5
    whole = ours.encode_with_offsets([text], 40)
    monkeypatch.setattr(base, "LONG", 100)
    monkeypatch.setattr(base, "CHUNK", 50)
    found = ours.encode_with_offsets([text], 40)
    assert found[0].ids[0].tolist() == whole[0].ids[0].tolist()
    assert found[0].truncated == whole[0].truncated == 1
    np.testing.assert_array_equal(found[1][0], whole[1][0])


def test_words_are_what_stands_between_blanks_and_marks():
    found = [[text[begin:end] for begin, end in words.find(text)] for text in TEXTS[:4]]
    assert found[0][:8] == ["Paul", "O", "'", "Neill", "'", "s", "U", "."]
    assert "Café" in found[0] and "e\u0301lan" in found[0]
    assert found[1] == ["two", "spaces", "and", "a", "tab"]
    assert found[2] == [*"上海的王明在", "IBM", *"工作，", "1998", *"年出生。"]
    assert found[3][:3] == ["ส", "วั", "ส"] and "мир" in found[3] and "한국어" in found[3]


def test_words_of_real_tokenizers_are_whole(pair):
    """Each begins where one of the text's begins and ends where one ends, in order."""
    ours, _ = pair
    for text, found in zip(TEXTS, words.encode(ours, TEXTS, Reading(512)).words or ()):
        plain = words.find(text)
        assert set(found[:, 1].tolist()) <= set(plain[:, 0].tolist())
        assert set(found[:, 2].tolist()) <= set(plain[:, 1].tolist())
        assert (np.diff(found[:, 0]) > 0).all() and (found[1:, 1] >= found[:-1, 2]).all()
    first = words.encode(ours, ["Paul is here"], Reading(512)).words[0]
    assert [first[n, 1:].tolist() for n in range(3)] == [[0, 4], [5, 7], [8, 12]]
    assert first[0, 0] == 1


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), max_size=8))
def test_every_token_is_in_one_word(pieces):
    """For any offsets, overlapping and empty ones too, words cover tokens and do not overlap."""
    text = "ab cd,efg 上海 hi jk"
    begins = np.sort([begin for begin, _ in pieces]).astype(np.int32)
    ends = np.array([min(len(text), b + size) for b, (_, size) in zip(begins, pieces)], np.int32)
    offsets = (
        np.stack([begins, np.maximum.accumulate(ends)], 1) if pieces else np.zeros((0, 2), int)
    )
    found = words.of_tokens(text, offsets)
    assert (found[:, 1] < found[:, 2]).all() and (found[1:, 1] >= found[:-1, 2]).all()
    for begin, end in offsets.tolist():
        if text[begin:end].strip():
            first = begin + len(text[begin:end]) - len(text[begin:end].lstrip())
            last = begin + len(text[begin:end].rstrip()) - 1
            inside = [(b <= first < e, b <= last < e) for _, b, e in found.tolist()]
            assert any(one for one, _ in inside) and any(other for _, other in inside)


def test_tokens_of_columns_are_words_as_they_stand(pair):
    """One label for each, by its first piece, as transformers' examples do with split words."""
    ours, theirs = pair
    tokens = ["@paul", "don't", "U.S.", "x", "http://a.b/c", "..."]
    text = conll.join(tokens)
    assert text == " ".join(tokens) and len(words.find(str(text))) > len(tokens)
    found = words.encode(ours, [text], Reading(64)).words[0]
    assert [text[begin:end] for _, begin, end in found] == tokens
    offsets = theirs.encode(text).offsets
    begins = [begin for _, begin, _ in found]
    first = [next(n for n, (b, e) in enumerate(offsets) if b <= at < e) for at in begins]
    assert found[:, 0].tolist() == first
    again = pickle.loads(pickle.dumps(text))
    assert again.words == text.words and again == text
