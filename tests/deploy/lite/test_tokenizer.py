"""The C++ tokenizer beside the one that fleetbert trains with, Hugging Face's."""

from __future__ import annotations

import os
import random
import sys
import unicodedata

import pytest
from lite_build import EMULATED_TOO, refused
from lite_tokens import NO_LETTERS, expected, ids_of, random_texts, same, write_vocabulary

from fleetbert.data.tokenizers.wordpiece import SPECIAL_TOKENS

RANDOM = int(os.environ.get("FLEETBERT_LITE_RANDOM", "2000"))  # texts


@pytest.fixture(scope="module")
def both(programs, tmp_path_factory):
    """A function: the two tokenizers' answers to texts (or pairs)."""
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"

    def answers(texts, lowercase=True, max_length=64, settings=None):
        write_vocabulary(path, texts)
        return ids_of(programs, path, texts, lowercase, max_length, settings), expected(
            path, texts, lowercase, max_length, settings
        )

    return answers


@EMULATED_TOO
@pytest.mark.parametrize("lowercase", [True, False])
def test_random_texts(both, lowercase):
    for number in range(RANDOM // 2000):
        texts = random_texts(2000, seed=2 * number + lowercase)
        same(*both(texts, lowercase), texts)


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("strip", [True, False])
@pytest.mark.parametrize("chinese", [True, False])
@pytest.mark.parametrize("clean", [True, False])
def test_settings_of_the_manifest(both, lowercase, strip, chinese, clean):
    texts = [*random_texts(200, seed=7), "möchte MÖCHTE İ", "字字 an字", "a\u200bn\0n\x01"]
    texts += ["[SEP] [MASK]"]  # ordinary characters: no text can pretend to be two
    settings = {
        "strip_accents": strip, "tokenize_chinese_chars": chinese, "clean_text": clean
    }  # fmt: skip
    same(*both(texts, lowercase, settings=settings), texts)


def test_special_tokens_of_another_spelling(programs, tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("[PAD]\n<unk>\n<s>\n</s>\n[MASK]\na\n[UNK]\n[CLS]\n[SEP]\n")
    settings = {"unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>"}
    found = ids_of(programs, path, ["a b"], True, 8, settings)
    assert found == expected(path, ["a b"], True, 8, settings) == [[4, 0, 2, 5, 1, 3]]


@pytest.mark.parametrize("lowercase", [True, False])
def test_every_character_that_is_no_letter(both, lowercase):
    texts = [f"a{character}b {character}" for character in NO_LETTERS]
    assert len(texts) > 10000
    same(*both(texts, lowercase), texts)


def test_marks_come_in_unicodes_order(both):
    marks = [chr(c) for c in range(sys.maxunicode + 1) if unicodedata.combining(chr(c))]
    chance = random.Random(5)
    texts = ["a" + "".join(chance.choices(marks, k=chance.randint(2, 6))) for _ in range(2000)]
    same(*both(texts), texts)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("max_length", [3, 4, 5, 6, 17, 64])
def test_pairs_are_cut_from_the_longer_text(both, max_length, side):
    texts = random_texts(200, seed=max_length)
    pairs = [*([a, b] for a, b in zip(texts[::2], texts[1::2])), *texts[:20]]
    pairs += [["a " * 5000, "b " * 4999], ["a " * 4999, "b " * 5000]]
    found, wanted = both(pairs, max_length=max_length, settings={"truncation_side": side})
    same(found, wanted, pairs)
    assert max(len(one) - 2 for one in found) <= max_length


def test_pairs_of_a_family_with_one_type(both):
    texts = [["a b", "c"], ["a", "b c d e f g h i"], "a b"]
    found, wanted = both(texts, max_length=8, settings={"one_type": True})
    same(found, wanted, texts)
    assert [one[0] for one in found] == [6, 8, 4]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nb\na\n",
            "vocab.txt:7: the token 'a' is in line 5 already",
        ),
        ("[PAD]\n[UNK]\n[SEP]\na\n", "lacks [CLS]"),
        (b"[PAD]\n\xff\n", "not UTF-8"),
        ("[PAD]\n[UNK]\na\0\n", "vocab.txt:3: the vocabulary holds a NUL character"),
        ("", "lacks [PAD]"),
    ],
)
def test_vocabularies_that_are_wrong(programs, tmp_path, content, words):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(programs.run("fleetbert-lite-tokens", path, "lower", 8, text='"a"\n'), words)


@pytest.mark.parametrize("content", ["\ufeff{}\n", "{}\r\n", "{}"])
def test_line_ends_of_a_vocabulary(programs, tmp_path, content):
    path = tmp_path / "vocab.txt"
    lines = [*SPECIAL_TOKENS, "a", "b\u2028b"]
    end = "\r\n" if "\r" in content else "\n"
    path.write_bytes(content.format(end.join(lines)).encode())
    found = ids_of(programs, path, ["a b"], True, 8)
    assert found == expected(path, ["a b"], True, 8) == [[4, 0, 2, 5, 1, 3]]
