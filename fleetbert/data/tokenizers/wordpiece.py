"""BERT's WordPiece tokenizer over the Rust library Hugging Face `tokenizers`."""

from __future__ import annotations

import json
import re
import shutil
from itertools import chain
from pathlib import Path
from typing import Dict, List

import numpy as np
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from fleetbert.data.tokenizers.base import Encodings, Spec, Tokenizer
from fleetbert.errors import UserError

# Texts of printable ASCII, Chinese characters and their punctuation, and BERT's words in these.
# Most words of a text were seen before: their ids are remembered, which takes a sixth of the
# library's time for a text (a quarter with Chinese characters). Where there is much to do, the
# library is better: other threads of Python run meanwhile.
PLAIN = re.compile("[ -~\u4e00-\u9fa5，。！？、；：“”‘’（）《》【】…—·]*")
WORDS = re.compile("[A-Za-z0-9]+|[^A-Za-z0-9 ]")
MUCH = 4096  # characters of all texts
LONGEST_REMEMBERED = 30  # characters of a word
MOST_REMEMBERED = 1 << 14
VOCAB, CONFIG = "vocab.txt", "tokenizer_config.json"
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class WordPiece(Tokenizer):
    """Texts → token ids with BERT's normalization, pre-tokenization and WordPiece vocabulary.

    A text is [CLS] a [SEP], a pair [CLS] a [SEP] b [SEP]; the first [SEP] is of segment 0.

    With `lowercase` accents are stripped too, as in the uncased models. Special tokens come from
    the tokenizer only: "[SEP]" written in a text is four ordinary tokens, so no text can pretend
    to be two.
    """

    kind = "wordpiece"

    def __init__(self, vocab_path: str | Path, lowercase: bool):
        """Read `vocab_path`: one token a line, its id the line number from 0."""
        self.spec = of_vocab(Path(vocab_path), lowercase)
        self.lowercase = lowercase
        vocab = _read_vocab(Path(vocab_path))
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            vocab[token] for token in SPECIAL_TOKENS
        )
        self.special_ids = tuple(vocab[token] for token in SPECIAL_TOKENS)
        self.vocab_size = len(vocab)
        self.is_subword = np.array(
            [token.startswith("##") and len(token) > 2 for token in vocab], dtype=bool
        )
        model = models.WordPiece(vocab=vocab, unk_token="[UNK]", max_input_chars_per_word=100)
        self._tokenizer = tokenizers.Tokenizer(model)
        self._tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
        self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        # The fast one does not compute offsets; versions before 0.20 do not have it.
        self._encode = getattr(self._tokenizer, "encode_batch_fast", self._tokenizer.encode_batch)
        self._ids_of_words = _IdsOfWords(model)

    @classmethod
    def find(cls, folder: Path) -> Spec | None:
        return cls.spec_in(folder) if (folder / VOCAB).is_file() else None

    @classmethod
    def spec_in(cls, folder: Path) -> Spec:
        """That of a folder with vocab.txt, whether it is there or not."""
        try:
            said = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        except FileNotFoundError:
            said = {}
        except (OSError, ValueError) as error:
            raise UserError(f"{folder / CONFIG} cannot be read: {error}") from error
        if not isinstance(said, dict):
            raise UserError(f"{folder / CONFIG} holds no JSON object")
        return of_vocab(folder / VOCAB, bool(said.get("do_lower_case", True)))

    @classmethod
    def open(cls, spec: Spec) -> WordPiece:
        return cls(spec.files[VOCAB], bool(spec.settings["lowercase"]))

    @classmethod
    def save(cls, spec: Spec, folder: Path) -> None:
        shutil.copyfile(spec.files[VOCAB], folder / VOCAB)
        said = {"do_lower_case": spec.settings["lowercase"], "tokenizer_class": "BertTokenizer"}
        (folder / CONFIG).write_text(json.dumps(said) + "\n")

    def encode(self, texts_a: list[str], texts_b: list[str] | None, max_length: int) -> Encodings:
        """Encode texts, or pairs if `texts_b` is given, to at most `max_length` tokens each.

        Pairs are truncated token by token from the longer text (from the second where both are
        equally long), as `_truncate_seq_pair` of google-research/bert does. Safe to call from
        several threads.
        """
        special = 2 if texts_b is None else 3
        if max_length < special:
            raise UserError(f"max_length is {max_length}; {special} special tokens alone need more")
        if texts_b is not None and len(texts_a) != len(texts_b):
            raise ValueError(f"{len(texts_a)} first texts but {len(texts_b)} second texts")
        room = max_length - special
        firsts = self._word_pieces(texts_a)
        if texts_b is None:
            truncated = sum([len(first) > room for first in firsts])
            ids = [np.array([self.cls_id, *one[:room], self.sep_id], np.int32) for one in firsts]
            return Encodings(ids, np.array([len(one) for one in ids], np.int32), truncated)
        ids = []
        first_lengths = np.zeros(len(firsts), np.int32)
        truncated = 0
        for number, (first, second) in enumerate(zip(firsts, self._word_pieces(texts_b))):
            if len(first) + len(second) > room:
                truncated += 1
                keep = min(len(second), max(room - len(first), room // 2))
                first, second = first[: room - keep], second[:keep]
            ids.append(np.array([self.cls_id, *first, self.sep_id, *second, self.sep_id], np.int32))
            first_lengths[number] = len(first) + 2
        return Encodings(ids, first_lengths, truncated)

    def _word_pieces(self, texts: list[str]) -> list[list[int]]:
        if all(map(_is_plain, texts)) and sum(map(len, texts)) <= MUCH:
            ids = self._ids_of_words.__getitem__
            lines = map(str.lower, texts) if self.lowercase else texts
            return [list(chain.from_iterable(map(ids, _words(line)))) for line in lines]
        try:
            return [encoding.ids for encoding in self._encode(texts, add_special_tokens=False)]
        except (TypeError, UnicodeEncodeError):  # which of them depends on the library's version
            for number, text in enumerate(texts):
                if isinstance(text, str) and not _is_unicode(text):
                    raise UserError(
                        f"text {number + 1} of {len(texts)} holds half of a surrogate pair, "
                        "which is no character; remove it"
                    ) from None
            raise


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


def _is_plain(text: str) -> bool:
    return isinstance(text, str) and PLAIN.fullmatch(text) is not None


def _words(line: str) -> list[str]:
    """A plain text in parts: Chinese words have no spaces between them."""
    return line.split() if line.isascii() else WORDS.findall(line)


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _read_vocab(path: Path) -> dict[str, int]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: no such vocabulary file; give BERT's vocab.txt") from None
    except OSError as error:
        raise UserError(f"{path}: the vocabulary cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(
            f"{path}: the vocabulary is not UTF-8 text; give BERT's vocab.txt"
        ) from None
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
    missing = [token for token in SPECIAL_TOKENS if token not in vocab]
    if missing:
        raise UserError(f"{path}: the vocabulary lacks {', '.join(missing)}; give BERT's vocab.txt")
    return vocab
