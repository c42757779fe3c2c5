"""The C++ tokenizer beside the one that fleetbert trains with, Hugging Face's."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import unicodedata

import pytest
from tiny_bert import VOCAB

from fleetbert.data.tokenizer import SPECIAL_TOKENS, Tokenizer

ALPHABETS = [
    (0x20, 0x7F),
    (0x80, 0x250),
    (0x250, 0x600),
    (0x300, 0x370),
    (0x600, 0x3000),
    (0x3000, 0x3100),
    (0x4E00, 0xA000),
    (0xAC00, 0xD7A4),
    (0xD7A4, 0xD800),
    (0xE000, 0x10000),
    (0x10000, 0x20000),
    (0x20000, 0x30000),
    (0x0, 0x21),
    (0x1D100, 0x1D200),
    (0x1E000, 0x1E100),
    (0xE0000, 0x110000),
]
# Letters of Unicode 16 and 17, whose lower case depends on the version of either library.
NEW_LETTERS = {0x1C89, *range(0xA7CB, 0xA7DD), *range(0x10D50, 0x10D66), *range(0x16EA0, 0x16EB9)}
WORDS = ["naïve", "Ünïcödé", "don't", "字", "北京市", "한국어", "ﬁ", "İstanbul", "ß", "e\u0301" * 3]


@pytest.fixture(scope="module")
def both(programs, tmp_path_factory):
    """A function: the two tokenizers' answers to texts (or pairs), with a vocabulary of theirs.

    Every character that a text can be made of is a token, so none hides behind [UNK].
    """
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"

    def answers(texts, lowercase=True, max_length=64):
        flat = [text for entry in texts for text in ([entry] if isinstance(entry, str) else entry)]
        forms = ["".join(flat)]
        forms += [unicodedata.normalize("NFD", forms[0])]
        forms += [form.lower() for form in forms]
        characters = sorted(set("".join(forms)) - set("\r\n"))
        characters += ["an", "na", "字字"]
        tokens = [*SPECIAL_TOKENS, *characters, *(f"##{one}" for one in characters)]
        path.write_bytes("\n".join(tokens).encode("utf-8", "ignore"))
        return ids_of(programs, path, texts, lowercase, max_length), expected(
            path, texts, lowercase, max_length
        )

    return answers


def ids_of(programs, path, texts, lowercase, max_length):
    """[tokens of segment 0, whether cut, ids ...] of each text, by the C++ tokenizer."""
    command = [programs / "fleetbert-lite-tokens", path, "lower" if lowercase else "cased"]
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    done = subprocess.run([*command, str(max_length)], input=lines, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return [[int(word) for word in line.split()] for line in done.stdout.splitlines()]


def expected(path, texts, lowercase, max_length):
    tokenizer = Tokenizer(path, lowercase)
    found = []
    for entry in texts:
        a, b = ([entry], None) if isinstance(entry, str) else ([entry[0]], [entry[1]])
        one = tokenizer.encode(a, b, max_length)
        found.append([int(one.first_lengths[0]), one.cut, *one.ids[0].tolist()])
    return found


def random_texts(count, seed):
    chance = random.Random(seed)

    def part():
        kind = chance.random()
        if kind < 0.2:
            return chance.choice(WORDS)
        if kind < 0.3:
            return " "
        if kind < 0.32:
            return chance.choice("an字é") * chance.randint(90, 110)
        first, end = chance.choice(ALPHABETS)
        drawn = [chance.randrange(first, end) for _ in range(chance.randint(1, 6))]
        return "".join(chr(character) for character in drawn if character not in NEW_LETTERS)

    return ["".join(part() for _ in range(chance.randint(0, 12))) for _ in range(count)]


def same(found, wanted, texts):
    wrong = [(ascii(text), a, b) for text, a, b in zip(texts, found, wanted) if a != b]
    assert wrong[:3] == []
    assert len(found) == len(wanted)


@pytest.mark.parametrize("lowercase", [True, False])
def test_random_texts(both, lowercase):
    texts = random_texts(4000, seed=int(lowercase))
    same(*both(texts, lowercase), texts)


@pytest.mark.parametrize("lowercase", [True, False])
def test_every_character_that_is_no_letter(both, lowercase):
    """Letters are the random texts' part: there are too many. So are those Python does not know."""
    texts = [
        f"a{character}b {character}"
        for character in map(chr, range(1, sys.maxunicode + 1))
        if unicodedata.category(character)[0] in "MPSZ"
        or unicodedata.category(character) in ("Cc", "Cf", "Nl", "No", "Lm")
    ]
    assert len(texts) > 10000
    same(*both(texts, lowercase), texts)


def test_marks_come_in_unicodes_order(both):
    marks = [chr(c) for c in range(sys.maxunicode + 1) if unicodedata.combining(chr(c))]
    chance = random.Random(5)
    texts = ["a" + "".join(chance.choices(marks, k=chance.randint(2, 6))) for _ in range(5000)]
    same(*both(texts), texts)


@pytest.mark.parametrize("max_length", [3, 4, 5, 6, 17, 64])
def test_pairs_are_cut_from_the_longer_text(both, max_length):
    texts = random_texts(600, seed=max_length)
    pairs = [[a, b] for a, b in zip(texts[::2], texts[1::2])]
    found, wanted = both(pairs, max_length=max_length)
    same(found, wanted, pairs)
    assert max(len(one) - 2 for one in found) <= max_length


def test_texts_are_cut(both):
    texts = ["a " * 100, "a " * 62, "a " * 63]
    found, wanted = both(texts)
    same(found, wanted, texts)
    assert [one[1] for one in found] == [1, 0, 1]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("[SEP] [MASK]", ["[UNK]"] * 6),  # ordinary characters: no text can pretend to be two
        ("word1\tword2\u2028word3", ["word1", "word2", "word3"]),
        ("WÖRD1", ["word1"]),
        ("wo\u200brd\x007", ["word7"]),
        ("字1字2", ["[UNK]"] * 4),
        ("word9" * 20, ["[UNK]"]),
        ("", []),
    ],
)
def test_words(programs, tiny_vocab, text, tokens):
    ids = [VOCAB.index(token) for token in tokens]
    (found,) = ids_of(programs, tiny_vocab, [text], True, 64)
    assert found[2:] == [VOCAB.index("[CLS]"), *ids, VOCAB.index("[SEP]")]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nb\na\n",
            "vocab.txt:7: the token 'a' is in line 5 already",
        ),
        ("[PAD]\n[UNK]\n[SEP]\na\n", "lacks [CLS]"),
        (b"[PAD]\n\xff\n", "not UTF-8"),
        ("", "lacks [PAD]"),
    ],
)
def test_vocabularies_that_are_wrong(programs, tmp_path, content, words):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    command = [programs / "fleetbert-lite-tokens", path, "lower", "8"]
    done = subprocess.run(command, input='"a"\n', capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


@pytest.mark.parametrize("content", ["\ufeff{}\n", "{}\r\n", "{}"])
def test_line_ends_of_a_vocabulary(programs, tmp_path, content):
    path = tmp_path / "vocab.txt"
    lines = [*SPECIAL_TOKENS, "a", "b\u2028b"]
    end = "\r\n" if "\r" in content else "\n"
    path.write_bytes(content.format(end.join(lines)).encode())
    found = ids_of(programs, path, ["a b"], True, 8)
    assert found == expected(path, ["a b"], True, 8) == [[4, 0, 2, 5, 1, 3]]
