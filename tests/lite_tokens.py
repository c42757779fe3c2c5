"""The C++ tokenizer beside the one that fleetbert trains with, Hugging Face's."""

from __future__ import annotations

import json
import random
import subprocess
import unicodedata
from pathlib import Path

from fleetbert.bundle import create
from fleetbert.data.tokenizers import of_vocab
from fleetbert.data.tokenizers.wordpiece import SPECIAL_TOKENS, WordPiece

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


def write_vocabulary(path: Path, texts) -> Path:
    """A vocabulary in which every character that a text or pair can become is a token, so that none
    hides behind [UNK]; but NUL, with which a file is no text."""
    flat = [text for entry in texts for text in ([entry] if isinstance(entry, str) else entry)]
    forms = ["".join(flat)]
    forms += [unicodedata.normalize("NFD", forms[0])]
    forms += [form.lower() for form in forms]
    characters = sorted(set("".join(forms)) - set("\r\n\0"))
    characters += ["an", "na", "字字"]
    tokens = [*SPECIAL_TOKENS, *characters, *(f"##{one}" for one in characters)]
    path.write_bytes("\n".join(tokens).encode("utf-8", "ignore"))
    return path


def ids_of(programs, path, texts, lowercase, max_length, settings=None):
    """[tokens of segment 0, whether cut, ids ...] of each text, by the C++ tokenizer. Other
    settings reach it as a bundle's manifest has them."""
    case = "lower" if lowercase else "cased"
    if settings is not None:
        case = path.with_name("bundle")
        spec = of_vocab(path, lowercase)
        create(
            case,
            task="classification",
            labels=["a", "b"],
            max_length=max_length,
            tokenizer=spec._replace(settings={**spec.settings, **settings}),
            fill=lambda folder: [],
        )
    command = programs.command("fleetbert-lite-tokens", path, case, max_length)
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    done = subprocess.run(command, input=lines, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return [[int(word) for word in line.split()] for line in done.stdout.splitlines()]


def expected(path, texts, lowercase, max_length, settings=None):
    tokenizer = WordPiece(path, lowercase, settings)
    found = []
    for entry in texts:
        a, b = ([entry], None) if isinstance(entry, str) else ([entry[0]], [entry[1]])
        one = tokenizer.encode(a, b, max_length)
        found.append([int(one.first_lengths[0]), one.truncated, *one.ids[0].tolist()])
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
