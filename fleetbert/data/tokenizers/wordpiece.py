"""BERT's WordPiece tokenizer over the Rust library Hugging Face `tokenizers`.

It is opened from vocab.txt and settings, as boards, PaddleNLP and `model.lowercase` need them, not
as a tokenizer.json: `whole.Whole` has the same ids and takes 4.1 times as long for a single text
(SST-2, CPU time), because it remembers no words.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
import unicodedata
from itertools import chain
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence

import numpy as np
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers
from tokenizers.implementations import BertWordPieceTokenizer

from fleetbert.bundle import Setting
from fleetbert.core import charset, files
from fleetbert.core.errors import UserError
from fleetbert.data.tokenizers import base
from fleetbert.data.tokenizers import folder as folders
from fleetbert.data.tokenizers.base import OfLibrary, Spec, Template

# Texts of printable ASCII, Chinese characters and their punctuation, and BERT's words in these.
# Most words of a text were seen before: their ids are remembered, which takes a sixth of the
# library's time for a text (a quarter with Chinese characters). Where there is much to do, the
# library is better: other threads of Python run meanwhile.
PLAIN_ASCII = re.compile("[ -~]*")
PLAIN = re.compile("[ -~\u4e00-\u9fa5，。！？、；：“”‘’（）《》【】…—·]*")
WORDS = re.compile("[A-Za-z0-9]+|[^A-Za-z0-9 ]")
MUCH = 4096  # characters of all texts
LONGEST_WORD = 100  # characters; a longer one is unknown as a whole
LONGEST_REMEMBERED = 30  # characters of a word
MOST_REMEMBERED = 1 << 14
VOCAB = "vocab.txt"
SPECIAL_TOKENS = tuple(folders.SPECIAL_TOKENS.values())

_log = logging.getLogger(__name__)


class WordPiece(OfLibrary):
    """Texts → token ids with BERT's normalization, pre-tokenization and WordPiece vocabulary.

    A text is [CLS] a [SEP], a pair [CLS] a [SEP] b [SEP]; the first [SEP] is of segment 0, and
    so is everything with the setting `one_type`.

    Accents are stripped where `strip_accents` is set, or where it is not named and `lowercase` is,
    as in the uncased models. Special tokens come from the tokenizer only: "[SEP]" written in a
    text is four ordinary tokens, so no text can pretend to be two.
    """

    kind = "wordpiece"
    on_boards = True

    def __init__(self, spec: Spec):
        """Its vocabulary has one token a line, whose id is the line number from 0. UserError names
        a setting that is none of `folder.KNOWN`."""
        self.spec, vocab_path = spec, spec.files[VOCAB]
        full = self.settings_in_full(spec)
        unknown = [name for name in full if name not in folders.KNOWN]
        if unknown:
            raise UserError(
                f"{vocab_path}: this fleetbert does not know the tokenizer's setting "
                f"{', '.join(unknown)}: install the fleetbert that wrote it"
            )
        self.lowercase = bool(full["lowercase"])
        special = [str(full[name]) for name in folders.SPECIAL_TOKENS]
        vocab = _read_vocab(vocab_path, special)
        self.special_ids = tuple(vocab[token] for token in special)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = self.special_ids
        one_type = bool(full[folders.ONE_TYPE])
        ends = (self.cls_id,), (self.sep_id,), (self.sep_id,)
        self.template = Template(*ends, one_type=one_type, left=full[folders.SIDE] == "left")
        self.vocab_size = len(vocab)
        self.is_subword = np.array(
            [token.startswith("##") and len(token) > 2 for token in vocab], dtype=bool
        )
        unknown_token = str(full["unk_token"])
        model = models.WordPiece(
            vocab=vocab, unk_token=unknown_token, max_input_chars_per_word=LONGEST_WORD
        )
        self._library = tokenizers.Tokenizer(model)
        self._library.normalizer = normalizers.BertNormalizer(
            clean_text=bool(full["clean_text"]),
            handle_chinese_chars=bool(full["tokenize_chinese_chars"]),
            strip_accents=bool(full["strip_accents"]),
            lowercase=self.lowercase,
        )
        self._library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        self._plain = PLAIN if full["tokenize_chinese_chars"] else PLAIN_ASCII
        self._ids_of_words = _IdsOfWords(model)
        self._model = model

    @classmethod
    def find(cls, folder: Path) -> Spec | None:
        return cls.spec_in(folder) if _vocab_in(folder).is_file() else None

    @classmethod
    def spec_in(cls, folder: Path) -> Spec:
        """That of a folder with vocab.txt, whether it is there or not."""
        vocab = _vocab_in(folder)
        words = _read_vocab(vocab, []) if vocab.is_file() else None
        return Spec(cls.kind, {VOCAB: vocab}, folders.read(folder, words))

    @classmethod
    def with_defaults(cls, spec: Spec) -> Spec:
        if "lowercase" in spec.settings:
            return spec
        _log.info(
            "%s: no file beside it says whether texts are lower-cased; they are (model.lowercase: "
            "false if the model is a cased one)",
            spec.files[VOCAB],
        )
        return spec._replace(settings={"lowercase": True, **spec.settings})

    @classmethod
    def settings_in_full(cls, spec: Spec) -> dict[str, Setting]:
        lowercase = spec.settings["lowercase"]
        first = {"lowercase": lowercase, "strip_accents": lowercase, folders.ONE_TYPE: False}
        first[folders.SIDE] = "right"
        return {**first, **folders.NORMALIZATION, **folders.SPECIAL_TOKENS, **spec.settings}

    @classmethod
    def save(cls, spec: Spec, folder: Path) -> None:
        shutil.copyfile(spec.files[VOCAB], folder / VOCAB)
        fields = folders.fields_of_config(spec.settings)
        (folder / folders.CONFIG).write_text(json.dumps(fields) + "\n")
        full = cls.settings_in_full(spec)
        if not full["clean_text"]:  # transformers reads it in tokenizer.json only
            special = {name: str(full[name]) for name in folders.SPECIAL_TOKENS}
            BertWordPieceTokenizer(
                _read_vocab(folder / VOCAB, []),
                clean_text=False,
                handle_chinese_chars=bool(full["tokenize_chinese_chars"]),
                strip_accents=bool(full["strip_accents"]),
                lowercase=bool(full["lowercase"]),
                **special,
            ).save(str(folder / folders.WHOLE))

    def write_trimmed(self, kept: np.ndarray, folder: Path) -> None:
        lines = "".join(f"{self.token(number)}\n" for number in kept)
        (folder / VOCAB).write_bytes(lines.encode())

    def _pieces(self, texts: list[str], most: int) -> list[list[int]]:
        if all(map(self._is_plain, texts)) and sum(map(len, texts)) <= MUCH:
            ids = self._ids_of_words.__getitem__
            lines = map(str.lower, texts) if self.lowercase else texts
            return [list(chain.from_iterable(map(ids, _words(line)))) for line in lines]
        return super()._pieces(texts, most)

    def _first(self, text: str, most: int, encode: Callable[..., list[Any]]) -> Any:
        """What is cut off changes no more than the last word."""
        size = base.CHUNK
        while True:
            [encoding] = encode([text[:size]], add_special_tokens=False)
            if len(encoding.ids) > most + LONGEST_WORD or size >= len(text):
                return encoding
            size *= 2

    def _first_ids(self, text: str, most: int) -> list[int]:
        """BERT's normalization looks at one character after the other, but for marks, which stay
        with theirs; words end at blanks and punctuation, so a chunk's last word goes with the next
        one. Of a word that is unknown for its length, no more is kept than that takes: a text of
        blanks, or of one word, takes little memory.
        """
        normalize = self._library.normalizer.normalize_str
        split = self._library.pre_tokenizer.pre_tokenize_str
        ids: list[int] = []
        begin, last = 0, ""
        while begin < len(text) and len(ids) < most:
            end = begin + base.CHUNK
            while end < min(len(text), begin + 2 * base.CHUNK) and unicodedata.combining(text[end]):
                end += 1
            part = last + normalize(text[begin:end])
            words = split(part)
            begin, last = end, ""
            if words and begin < len(text) and words[-1][1][1] == len(part):
                last = words.pop()[0][: LONGEST_WORD + 1]
            for word, _ in words:
                ids += [token.id for token in self._model.tokenize(word)]
        return ids

    def _is_plain(self, text: str) -> bool:
        return isinstance(text, str) and self._plain.fullmatch(text) is not None


def of_vocab(vocab: Path, lowercase: bool) -> Spec:
    """That of a vocabulary."""
    return Spec(WordPiece.kind, {VOCAB: vocab}, {"lowercase": lowercase})


class _IdsOfWords(Dict[str, List[int]]):
    """The ids of what stands between spaces, one of BERT's words or several. Those that were asked
    for are remembered, until there are too many: then it begins anew. Processes that read for a
    trainer get it pickled, which functools' caches cannot be."""

    def __init__(self, model: models.WordPiece):
        self._model = model

    def __missing__(self, words: str) -> list[int]:
        tokens = chain.from_iterable(map(self._model.tokenize, WORDS.findall(words)))
        ids = [token.id for token in tokens]
        if len(words) <= LONGEST_REMEMBERED:
            if len(self) >= MOST_REMEMBERED:
                self.clear()
            self[words] = ids
        return ids


def _words(line: str) -> list[str]:
    """A plain text in parts: Chinese words have no spaces between them."""
    return line.split() if line.isascii() else WORDS.findall(line)


def _vocab_in(folder: Path) -> Path:
    """vocab.txt, or one made of a tokenizer.json without it, as transformers 5 writes folders."""
    vocab = folder / VOCAB
    if vocab.is_file():
        return vocab
    words = (folders.fields_of(folder / folders.WHOLE).get("model") or {}).get("vocab")
    if not isinstance(words, dict) or sorted(words.values()) != list(range(len(words))):
        return vocab
    text = "\n".join(sorted(words, key=lambda word: int(words[word]))) + "\n"
    name = f"vocab-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
    return files.cached(name, lambda new: (new / VOCAB).write_text(text, "utf-8")) / VOCAB


def _read_vocab(path: Path, special: Sequence[str]) -> dict[str, int]:
    text = charset.read_text(path, "vocabulary")
    vocab: dict[str, int] = {}
    # Not splitlines(): vocabularies hold U+2028 and the like as tokens.
    for number, token in enumerate(text.rstrip("\r\n").split("\n")):
        token = token.rstrip("\r")
        if token in vocab:
            raise UserError(
                f"{path}:{number + 1}: the token {token!r} is in line {vocab[token] + 1} already; "
                "a vocabulary has each token once"
            )
        vocab[token] = number
    missing = [token for token in special if token not in vocab]
    if missing:
        raise UserError(f"{path}: the vocabulary lacks {', '.join(missing)}; give BERT's vocab.txt")
    return vocab
