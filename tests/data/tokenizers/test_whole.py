"""Byte-level BPE and Unigram beside transformers (files/make.py made what it answers)."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import random_texts
import tokenizers as library
from tokenizer_files import EXPECTED, FAMILIES, FILES, write

from fleetbert import bundle as bundles
from fleetbert.core.errors import UserError
from fleetbert.data import tokenizers
from fleetbert.data.tokenizers import base, sentencepiece
from fleetbert.data.tokenizers.whole import BETWEEN_WORDS, Whole

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(params=FAMILIES)
def family(request) -> str:
    return request.param


@pytest.fixture
def tokenizer(family, tmp_path) -> Whole:
    return tokenizers.open(tokenizers.find(write(tmp_path / "model", family)))


def ids(tokenizer, texts, seconds=None, max_length=512) -> list[list[int]]:
    return [one.tolist() for one in tokenizer.encode(texts, seconds, max_length).ids]


def test_ids_are_those_of_transformers(tokenizer, family):
    rows = zip(EXPECTED["texts"], EXPECTED[family])
    rows = [(text, wanted) for text, wanted in rows if not any(one in text for one in SPECIAL)]
    assert len(rows) == len(EXPECTED["texts"]) - 1
    texts, wanted = zip(*rows)
    assert ids(tokenizer, list(texts)) == list(wanted)


def test_ids_of_random_strings_are_those_of_transformers(tokenizer, family):
    wanted = EXPECTED[f"{family} strings"]
    found = ids(tokenizer, random_texts.draw(100 * len(wanted), 2), max_length=1 << 16)
    assert random_texts.digests(found) == wanted


def test_a_long_text_is_read_until_there_are_enough_tokens(tokenizer, monkeypatch):
    """Its ids are the first ones of the whole, in whatever characters it is written."""
    assert tokenizer._may_cut
    texts = random_texts.draw(1500, 3)
    texts = [" ".join(texts[start : start + 15]) for start in range(0, 1500, 15)]
    texts += ["a 'b's  c\u0301 d \u0301e <mask> f\n g  h i" * 3, "字 词 句" * 9, "ab" * 50]
    wanted = [tokenizer.encode(texts, texts[::-1], size) for size in (8, 40, 4000)]
    whole = [encoding.ids for encoding in tokenizer._encode(texts, add_special_tokens=False)]
    read = []
    real = tokenizer._encode
    monkeypatch.setattr(base, "LONG", 10)
    monkeypatch.setattr(base, "CHUNK", 3)
    monkeypatch.setattr(
        tokenizer, "_encode", lambda given, **how: (read.extend(given), real(given, **how))[1]
    )
    for size, before in zip((8, 40, 4000), wanted):
        found = tokenizer.encode(texts, texts[::-1], size)
        assert [one.tolist() for one in found.ids] == [one.tolist() for one in before.ids]
        assert found.first_lengths.tolist() == before.first_lengths.tolist()
        assert found.truncated == before.truncated
    for text, ids_of_all in zip(texts, whole):
        for most in (1, 2, 7, 40):
            some = tokenizer._first(text, most, real).ids
            assert some == ids_of_all[: len(some)] and len(some) >= min(most, len(ids_of_all))
    read.clear()
    tokenizer.encode(["word one " * 100_000], None, 16)
    assert 0 < sum(map(len, read)) < 200


@pytest.mark.parametrize("text", ["a  b", "a \u0301b", "\u0e33 a", "a\u3000b", "a\nb", ") b"])
def test_no_text_is_divided_where_characters_may_join(text):
    assert BETWEEN_WORDS.search(text) is None


@pytest.mark.parametrize(
    "part",
    [
        {"normalizer": library.normalizers.Replace("a b", "c")},
        {"pre_tokenizer": library.pre_tokenizers.ByteLevel(use_regex=False)},
        {"pre_tokenizer": library.pre_tokenizers.Metaspace(split=False)},
        {"pre_tokenizer": library.pre_tokenizers.Punctuation()},
        {"pre_tokenizer": None},
    ],
    ids=lambda part: repr(*part.values())[:20],
)
def test_a_long_text_is_read_whole_where_words_may_hold_spaces(tmp_path, monkeypatch, part):
    monkeypatch.setattr(base, "LONG", 10)
    monkeypatch.setattr(base, "CHUNK", 3)
    spec = tokenizers.find(write(tmp_path / "model", "roberta"))
    whole = library.Tokenizer.from_file(str(spec.files["tokenizer.json"]))
    for name, value in part.items():
        setattr(whole, name, value)
    path = tmp_path / "tokenizer.json"
    whole.save(str(path))
    changed = tokenizers.open(spec._replace(files={"tokenizer.json": path}))
    assert not changed._may_cut
    text = "the a b of a b and the b " * 20
    assert changed._pieces([text], 3) == [whole.encode(text, add_special_tokens=False).ids]


def test_pairs_and_special_tokens_are_those_of_transformers(tokenizer, family):
    firsts, seconds = map(list, zip(*EXPECTED["pairs"]))
    found = tokenizer.encode(firsts, seconds, 512)
    assert [one.tolist() for one in found.ids] == EXPECTED[f"{family} pairs"]
    assert found.first_lengths.tolist() == [len(one) for one in found.ids]  # one type
    assert set(EXPECTED[f"{family} special"]) <= set(tokenizer.special_ids)
    assert tokenizer.pad_id == EXPECTED[f"{family} pad"]
    wanted = EXPECTED[family][EXPECTED["texts"].index("")]
    assert (tokenizer.cls_id, tokenizer.sep_id) == (wanted[0], wanted[-1])


@pytest.mark.parametrize("text", ["</s>", "a </s></s> b", "<pad><pad>", "x<mask>", "<s>NOTUSED"])
def test_no_text_can_spell_a_special_token(tokenizer, text):
    (found,) = ids(tokenizer, [text])
    inner = found[1:-1]
    assert inner
    assert not set(inner) & (set(tokenizer.special_ids) - {tokenizer.unk_id})


@pytest.mark.parametrize("max_length", [4, 7, 20])
def test_texts_are_cut_and_the_template_stays(tokenizer, max_length):
    texts = ["word " * 9, "a"]
    found = tokenizer.encode(texts, texts[::-1], max_length)
    assert [len(one) for one in found.ids] == [max_length] * 2 if max_length < 10 else True
    between = tokenizer.template.between
    for one in found.ids:
        row = one.tolist()
        assert (row[0], row[-1]) == (tokenizer.cls_id, tokenizer.sep_id)
        assert any(tuple(row[at : at + 2]) == between for at in range(len(row)))
    with pytest.raises(UserError, match="max_length is 3; 4 special tokens alone"):
        tokenizer.encode(texts, texts, 3)


@pytest.mark.parametrize("side", ["right", "left"])
def test_what_is_cut_is_what_the_library_cuts(tokenizer, side, monkeypatch):
    monkeypatch.setattr(base, "LONG", 20)
    monkeypatch.setattr(base, "CHUNK", 7)
    spec = tokenizer.spec._replace(settings={**tokenizer.spec.settings, "truncation_side": side})
    tokenizer = tokenizers.open(spec)
    whole = library.Tokenizer.from_file(str(spec.files["tokenizer.json"]))
    texts = ["a bad word of the many", "a b c d e f", "字 word", "the word " * 9, "x", ""]
    for first in texts:
        for max_length in (5, 6, 7, 8, 12):
            whole.enable_truncation(max_length, strategy="longest_first", direction=side)
            assert ids(tokenizer, [first], None, max_length) == [whole.encode(first).ids]
            for second in texts:
                wanted = whole.encode(first, second).ids
                assert ids(tokenizer, [first], [second], max_length) == [wanted]


def test_words_are_told_from_what_continues_them(tokenizer, family):
    (found,) = ids(tokenizer, [" bad word"])
    first = tokenizer.spec.files["tokenizer.json"]
    start = "\u0120" if family == "roberta" else "\u2581"
    named = library.Tokenizer.from_file(str(first))
    begins = [named.id_to_token(one).startswith(start) for one in found[1:-1]]
    assert [not one for one in tokenizer.is_subword[found[1:-1]]] == begins
    assert begins.count(True) == 2
    assert not tokenizer.is_subword[list(tokenizer.special_ids)].any()


def test_sent_saved_or_in_a_bundle_it_is_the_same(tokenizer, tmp_path):
    (tmp_path / "saved").mkdir()
    tokenizers.save(tokenizer.spec, tmp_path / "saved")
    saved = tokenizers.open(tokenizers.find(tmp_path / "saved"))
    assert saved.spec.settings == tokenizer.spec.settings
    bundle = bundles.create(
        tmp_path / "bundle", task="classification", labels=["a", "b"], max_length=64,
        tokenizer=tokenizer.spec, fill=lambda folder: [],
    )  # fmt: skip
    bundled = tokenizers.open(bundles.read(bundle.root))
    assert bundled.spec.files["tokenizer.json"].parent == bundle.root.resolve()
    wanted = ids(tokenizer, EXPECTED["texts"])
    for again in (pickle.loads(pickle.dumps(tokenizer)), saved, bundled):
        assert ids(again, EXPECTED["texts"]) == wanted


def test_what_cannot_be_asked_of_it(tokenizer):
    with pytest.raises(UserError, match="text 2 of 2 holds half of a surrogate pair"):
        tokenizer.encode(["a", "\ud800"], None, 16)
    with pytest.raises(UserError, match=r"model\.lowercase: .*tokenizer\.json says how texts"):
        tokenizers.changed(tokenizer.spec, None, True)


def test_a_template_of_berts_segments(tmp_path):
    """A tokenizer.json of Unigram with [CLS] a [SEP] b [SEP], and padding and truncation set."""
    made = sentencepiece.convert(FILES / "sentencepiece.bpe.model", "xlm-roberta")
    made.post_processor = library.processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )  # fmt: skip
    made.enable_truncation(5)
    made.enable_padding(length=40)
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = tokenizers.open(tokenizers.find(tmp_path))
    found = tokenizer.encode(["word"], ["bad word"], 64)
    (row,) = found.ids
    first = len(ids(tokenizer, ["word"])[0])
    assert found.first_lengths.tolist() == [first]
    assert np.count_nonzero(row == 2) == 2
    one_type = tokenizer.spec._replace(settings={**tokenizer.spec.settings, "one_type": True})
    assert tokenizers.open(one_type).encode(["word"], ["bad"], 64).first_lengths[0] > first


WRONG = '{"model": {"type": "BPE", "vocab": {"<pad>": 0}, "merges": 3}}'


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda f: (f / "merges.txt").write_text("no merge of these\n"), "does not go with"),
        (lambda f: (f / "vocab.json").write_text('{"a": 0}'), "lacks <pad>, <unk>, <s>"),
        (lambda f: (f / "vocab.json").write_text("{"), "is no JSON"),
        (lambda f: (f / "sentencepiece.bpe.model").write_bytes(b"\x0f\x01"), "is no Unigram model"),
        (lambda f: (f / "tokenizer.json").write_text(WRONG), "the tokenizer cannot be read"),
    ],
)
def test_files_that_cannot_be_used(change, sentence, tmp_path):
    folder = write(tmp_path / "model", "roberta")
    change(folder)
    with pytest.raises(UserError, match=sentence):
        tokenizers.open(tokenizers.find(folder))
