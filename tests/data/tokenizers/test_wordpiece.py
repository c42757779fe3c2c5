from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers.implementations import BertWordPieceTokenizer

from fleetbert.core.errors import UserError
from fleetbert.data.tokenizers import base, wordpiece
from fleetbert.data.tokenizers.wordpiece import PLAIN, SPECIAL_TOKENS, WordPiece, of_vocab

WORDS = "the cat sat un ##want ##ed ##s run ##n ##ing 中 文 , . ! ( ) [ ] 1 ##2 a b c ##a ##b É é e"
VOCAB = [*SPECIAL_TOKENS, *WORDS.split()]
texts = st.text(
    alphabet=st.one_of(
        st.sampled_from("thecatsuwnrig中文,.!()[]12abÉéE \t\n\u00a0\u0301\u200b�"),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=40,
)


@pytest.fixture(scope="module")
def vocab_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(VOCAB) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def tokenizer(request, vocab_path):
    return WordPiece(of_vocab(vocab_path, request.param))


@pytest.mark.parametrize(
    ("text", "uncased", "cased"),
    [
        (
            "The cats sat, unwanted!",
            "the cat ##s sat , un ##want ##ed !",
            "[UNK] cat ##s sat , un ##want ##ed !",
        ),
        ("中文cat文", "中 文 cat 文", "中 文 cat 文"),
        ("É éa 12", "e e ##a 1 ##2", "É é ##a 1 ##2"),
        ("[SEP] [a]", "[ [UNK] ] [ a ]", "[ [UNK] ] [ a ]"),
        ("\u3000 \t", "", ""),
        ("a\u0301", "a", "[UNK]"),
    ],
)
def test_tokens(tokenizer, text, uncased, cased):
    (ids,) = tokenizer.encode([text], None, 500).ids
    tokens = (uncased if tokenizer.lowercase else cased).split()
    assert [VOCAB[i] for i in ids] == ["[CLS]", *tokens, "[SEP]"]


plain_texts = st.text(st.sampled_from("thecatsunwrigTE .,![]#_1\x7f中文，。”—"), max_size=60)


@given(text=st.one_of(texts, plain_texts))
def test_ids_are_those_of_the_library(tokenizer, vocab_path, text):
    wanted = BertWordPieceTokenizer(str(vocab_path), lowercase=tokenizer.lowercase)
    (ids,) = tokenizer.encode([text], None, 500).ids
    assert ids.tolist() == wanted.encode(text).ids


def test_each_plain_character_is_read_as_by_the_library(tokenizer):
    plain = filter(PLAIN.fullmatch, map(chr, range(0x110000)))
    texts = [f"cat{char}The {char}" for char in plain]
    assert len(texts) > 20_000
    library = tokenizer._library.encode_batch(texts, add_special_tokens=False)
    for text, encoding in zip(texts, library):
        assert tokenizer._pieces([text], len(text) + 1) == [encoding.ids], text


def test_no_more_words_are_remembered_than_there_is_room_for(tokenizer, monkeypatch):
    texts = ["hello world , once more", "other words", "hello other"]
    before = tokenizer.encode(texts, None, 32).ids
    monkeypatch.setattr("fleetbert.data.tokenizers.wordpiece.MOST_REMEMBERED", 2)
    tokenizer._ids_of_words.clear()
    for one, other in zip(before, tokenizer.encode(texts, None, 32).ids):
        np.testing.assert_array_equal(one, other)
    assert set(tokenizer._ids_of_words) == {"other"}  # when a third comes, it begins anew


def test_another_process_can_be_given_one(tokenizer):
    texts = ["hello world", "Ünï 世界"]
    copied = pickle.loads(pickle.dumps(tokenizer))
    for one, other in zip(*(each.encode(texts, None, 32).ids for each in (tokenizer, copied))):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("length", [29, 30, 31, 100, 101, 300])
def test_long_words_of_plain_characters_are_those_of_any_text(tokenizer, length):
    word = "run" + "s" * (length - 3)
    (alone,) = tokenizer.encode([word], None, 512).ids
    (beside,) = tokenizer.encode([f"{word} か"], None, 512).ids
    assert alone[1:-1].tolist() == beside[1:-2].tolist()
    assert len(alone) == (length if length <= 100 else 3)


@given(
    pairs=st.lists(st.tuples(texts, texts), min_size=1, max_size=4),
    paired=st.booleans(),
    max_length=st.integers(3, 30),
)
def test_special_tokens_and_lengths(tokenizer, pairs, paired, max_length):
    firsts, seconds = [a for a, _ in pairs], [b for _, b in pairs]
    encodings = tokenizer.encode(firsts, seconds if paired else None, max_length)
    whole = tokenizer.encode(firsts, seconds if paired else None, 10**6)
    assert whole.truncated == 0
    assert encodings.truncated == int((whole.lengths > max_length).sum())
    for ids, first_length, all_ids in zip(encodings.ids, encodings.first_lengths, whole.ids):
        assert ids.dtype == np.int32
        assert len(ids) == min(len(all_ids), max_length)
        assert ids[0] == tokenizer.cls_id
        assert ids[-1] == ids[first_length - 1] == tokenizer.sep_id
        separators = (ids == tokenizer.sep_id).sum()
        assert separators == (2 if paired else 1)
        if not paired:
            assert first_length == len(ids)


@pytest.mark.parametrize("side", ["right", "left"])
@given(a=st.integers(0, 12), b=st.integers(0, 12), max_length=st.integers(4, 24))
def test_what_is_cut_is_what_the_library_cuts(vocab_path, side, a, b, max_length):
    spec = of_vocab(vocab_path, True)
    tokenizer = WordPiece(spec._replace(settings={**spec.settings, "truncation_side": side}))
    library = Library.from_str(BertWordPieceTokenizer(str(vocab_path)).to_str())
    library.enable_truncation(max_length, strategy="longest_first", direction=side)
    some = ["the", "cat", "sat", "un", "run", "中", "文", ",", ".", "!", "(", ")"]
    first, second = " ".join(some[:a]), " ".join(some[::-1][:b])
    wanted = library.encode(first, second)
    encodings = tokenizer.encode([first], [second], max_length)
    assert encodings.ids[0].tolist() == wanted.ids
    assert encodings.first_lengths[0] == wanted.type_ids.count(0)
    wanted = library.encode(first)
    assert tokenizer.encode([first], None, max_length).ids[0].tolist() == wanted.ids
    found, [offsets] = tokenizer.encode_with_offsets([first], max_length)
    assert found.ids[0].tolist() == wanted.ids
    assert list(map(tuple, offsets.tolist())) == wanted.offsets


def test_properties(tokenizer):
    assert tokenizer.vocab_size == len(VOCAB)
    assert [VOCAB[i] for i in tokenizer.special_ids] == list(SPECIAL_TOKENS)
    assert [VOCAB[i] for i in np.flatnonzero(tokenizer.is_subword)] == [
        token for token in VOCAB if token.startswith("##")
    ]
    assert not set(tokenizer.special_ids) & set(tokenizer.ordinary_ids.tolist())
    assert len(tokenizer.ordinary_ids) == len(VOCAB) - 5


def test_windows_line_ends_and_odd_tokens(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes("\r\n".join([*SPECIAL_TOKENS, "\u2028", "a"]).encode("utf-8"))
    tokenizer = WordPiece(of_vocab(path, True))
    assert tokenizer.vocab_size == 7
    assert tokenizer.encode(["a"], None, 8).ids[0].tolist() == [2, 6, 3]


@pytest.mark.parametrize(
    "content, reason",
    [
        (None, "no such vocabulary"),
        ("[PAD] [UNK] [CLS] [SEP] x", r"lacks \[MASK\]"),
        ("", "lacks"),
        (" ".join([*SPECIAL_TOKENS, "a b a"]), "vocab.txt:8: the token 'a' is in line 6"),
    ],
)
def test_vocabularies_that_cannot_be_used(tmp_path, content, reason):
    path = tmp_path / "vocab.txt"
    if content is not None:
        path.write_text(content.replace(" ", "\n") + "\n")
    with pytest.raises(UserError, match=reason):
        WordPiece(of_vocab(path, True))


def test_texts_that_cannot_be_encoded(tokenizer):
    with pytest.raises(UserError, match="text 2 of 2"):
        tokenizer.encode(["fine", "\ud800"], None, 8)
    with pytest.raises(UserError, match="max_length is 1"):
        tokenizer.encode(["a"], None, 1)


OTHERS = [
    {"lowercase": True},
    {"lowercase": False},
    {"lowercase": True, "strip_accents": False},
    {"lowercase": False, "strip_accents": True},
    {"lowercase": True, "clean_text": False},
    {"lowercase": True, "tokenize_chinese_chars": False},
]
runs = st.tuples(texts, st.sampled_from([1, 1, 1, 2, 30, 120])).map(lambda run: run[0] * run[1])


@pytest.mark.parametrize("fields", OTHERS, ids=str)
@settings(max_examples=30)
@given(text=st.lists(runs, max_size=5).map("".join), chunk=st.integers(5, 50))
def test_a_long_text_in_chunks_has_the_ids_of_the_whole(vocab_path, fields, text, chunk):
    tokenizer = WordPiece(of_vocab(vocab_path, fields["lowercase"])._replace(settings=fields))
    [whole] = tokenizer._encode([text], add_special_tokens=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "CHUNK", chunk)
        assert tokenizer._first_ids(text, len(text) + 1) == whole.ids
        some = tokenizer._first_ids(text, 7)
    assert some == whole.ids[: len(some)] and len(some) >= min(7, len(whole.ids))


@pytest.mark.parametrize("side", ["right", "left"])
@settings(max_examples=50)
@given(pairs=st.lists(st.tuples(runs, runs), min_size=1, max_size=3), room=st.integers(0, 40))
def test_long_texts_and_pairs_are_truncated_as_short_ones(vocab_path, side, pairs, room):
    said = {"lowercase": True, "truncation_side": side}
    tokenizer = WordPiece(of_vocab(vocab_path, True)._replace(settings=said))
    first, second = map(list, zip(*pairs))
    for others in (None, second):
        expected = tokenizer.encode(first, others, room + 3)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(base, "LONG", 10)
            patch.setattr(wordpiece, "MUCH", 0)
            patch.setattr(base, "CHUNK", 8)
            found = tokenizer.encode(first, others, room + 3)
        assert [one.tolist() for one in found.ids] == [one.tolist() for one in expected.ids]
        assert found.first_lengths.tolist() == expected.first_lengths.tolist()
        assert found.truncated == expected.truncated
