"""The C++ tokenizer beside the one that fleetbert trains with, Hugging Face's."""

from __future__ import annotations

import json
import random
import sys
import unicodedata
from pathlib import Path

import tokenizers as library

from fleetbert.bundle import create
from fleetbert.data import tokenizers
from fleetbert.data.tokenizers import of_vocab, sentencepiece
from fleetbert.data.tokenizers.wordpiece import SPECIAL_TOKENS, WordPiece
from fleetbert.export import lite_unigram

PIECES = Path(__file__).with_name("data") / "tokenizers" / "files" / "sentencepiece.bpe.model"
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
# Letters are the random texts' part: there are too many. So are those Python does not know.
NO_LETTERS = [
    character
    for character in map(chr, range(1, sys.maxunicode + 1))
    if unicodedata.category(character)[0] in "MPSZ"
    or unicodedata.category(character) in ("Cc", "Cf", "Nl", "No", "Lm")
]
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
    return run(programs, path, case, max_length, texts)


def run(programs, path, how, max_length, texts):
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    done = programs.run("fleetbert-lite-tokens", path, how, max_length, text=lines)
    assert (done.returncode, done.stderr) == (0, b"")
    return [[int(word) for word in line.split()] for line in done.stdout.splitlines()]


def expected(path, texts, lowercase, max_length, settings=None):
    spec = of_vocab(path, lowercase)
    spec = spec._replace(settings={**(settings or {}), **spec.settings})
    return encoded(WordPiece(spec), texts, max_length)


def encoded(tokenizer, texts, max_length):
    """As `ids_of`, by the tokenizer that fleetbert trains with."""
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


def write_unigram(folder: Path, texts, seed=0, normalizer=None, pre_tokenizer=None, added=()):
    """A tokenizer of Unigram with the normalizer of SentencePiece's, of whose pieces most are the
    characters that the texts can become and words' parts; each has a chance of its own."""
    chance = random.Random(seed)
    made = sentencepiece.convert(PIECES, sentencepiece.XLM_ROBERTA)
    normalizer = made.normalizer if normalizer is None else normalizer
    flat = [text for entry in texts for text in ([entry] if isinstance(entry, str) else entry)]
    words = [f"\u2581{one}" for text in flat for one in normalizer.normalize_str(text).split()]
    characters = sorted(set("".join(words)) - {"\u2581"})
    known = [one for one in characters if chance.random() < 0.97]
    starts = [(word, chance.randrange(len(word))) for word in words]
    parts = [word[at : at + chance.randint(2, 5)] for word, at in starts]
    pieces = [(one, 0.0) for one in ("<s>", "<pad>", "</s>", "<unk>")]
    pieces += [(one, -chance.uniform(1, 12)) for one in dict.fromkeys(["\u2581", *known, *parts])]
    pieces += [("<mask>", 0.0)]
    model = library.Tokenizer(library.models.Unigram(pieces, unk_id=3))
    model.normalizer = normalizer
    model.pre_tokenizer = made.pre_tokenizer if pre_tokenizer is None else pre_tokenizer
    model.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    model.add_tokens(list(added))
    model.post_processor = made.post_processor
    folder.mkdir(exist_ok=True)
    model.save(str(folder / "tokenizer.json"))
    return tokenizers.open(tokenizers.find(folder))


def ids_of_unigram(programs, tokenizer, texts, max_length):
    """As `ids_of`, of a tokenizer that the exporter writes for boards."""
    folder = tokenizer.spec.files["tokenizer.json"].parent
    lite_unigram.write(lite_unigram.compiled(tokenizer), folder)
    return run(programs, folder / lite_unigram.NAME, "unigram", max_length, texts)
