"""Tokenizers that a tokenizer.json describes whole, over Hugging Face's library `tokenizers`:
byte-level BPE (RoBERTa) and Unigram (CamemBERT, XLM-RoBERTa, E5).

Normalization, added tokens and the template of special tokens are what the file says. Folders
without one, with vocab.json and merges.txt or with sentencepiece.bpe.model, get one made, once, in
the user's cache.
"""

from __future__ import annotations

import json
import re
import shutil
from functools import cached_property
from pathlib import Path
from typing import Any, Callable, Iterator

import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from fleetbert.bundle import Setting
from fleetbert.core import charset, files
from fleetbert.core.errors import UserError
from fleetbert.data.tokenizers import base, sentencepiece
from fleetbert.data.tokenizers import folder as folders
from fleetbert.data.tokenizers.base import OfLibrary, Spec, Template

WHOLE = folders.WHOLE
VOCAB, MERGES, PIECES = "vocab.json", "merges.txt", "sentencepiece.bpe.model"
KINDS = ("BPE", "Unigram")
# What files of either convention call the tokens, where tokenizer_config.json does not say it.
USUAL = (
    {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>",
     "mask_token": "<mask>"},
    folders.SPECIAL_TOKENS,
)  # fmt: skip
# Begin a word: of Unigram, and of byte-level BPE (a space as a visible character).
WORD_STARTS = ("\u2581", "\u0120")
# One space between characters that no normalizer joins with it: Latin, Greek and Cyrillic letters,
# Chinese characters, Hangul syllables. Where texts are split at spaces, the ids of what stands
# before are the first ids of the whole.
LETTER = "[0-9A-Za-z\u00c0-\u024f\u0391-\u03c9\u0400-\u0481\u048a-\u04ff\u4e00-\u9fa5\uac00-\ud7a3]"
BETWEEN_WORDS = re.compile(f"(?<={LETTER}) (?={LETTER})")
LOCAL = ("NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "Lowercase", "StripAccents", "Strip")
LOCAL_PATTERNS = ({"Regex": " {2,}"}, {"String": " "})


class Whole(OfLibrary):
    """Texts → token ids as a tokenizer.json says.

    Special tokens come from the template only: "</s>" written in a text is ordinary characters or
    the unknown token, so no text can pretend to be two. Other added tokens are found in texts.
    Settings: how the five special tokens are spelled, `one_type` and `truncation_side`.
    """

    kind = "tokenizer.json"

    def __init__(self, spec: Spec):
        self.spec = spec
        path = spec.files[WHOLE]
        try:
            library = tokenizers.Tokenizer.from_str(charset.read_text(path, "tokenizer"))
        except UserError:
            raise
        except Exception as error:  # the library raises plain Exception
            raise UserError(f"{path}: the tokenizer cannot be read: {error}") from None
        library.no_truncation()
        library.no_padding()
        library.encode_special_tokens = True
        vocab = library.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocab.values()) + 1
        special = {name: str(spec.settings.get(name)) for name in folders.SPECIAL_TOKENS}
        for name in ("pad_token", "unk_token"):
            if special[name] not in vocab:
                raise UserError(f"{path}: the vocabulary lacks the {name} {special[name]}")
        self.pad_id, self.unk_id = vocab[special["pad_token"]], vocab[special["unk_token"]]
        left = spec.settings.get(folders.SIDE) == "left"
        self.template = _template(library, path)._replace(left=left)
        if spec.settings.get(folders.ONE_TYPE):
            self.template = self.template._replace(one_type=True)
        self.cls_id, self.sep_id = self.template.before[0], self.template.after[-1]
        self.mask_id = vocab.get(special["mask_token"], self.unk_id)
        added = library.get_added_tokens_decoder().items()
        of_template = (*self.template.before, *self.template.between, *self.template.after)
        ids = {*of_template, self.pad_id, self.unk_id, self.mask_id}
        self.special_ids = tuple(sorted(ids | {number for number, token in added if token.special}))
        self._never = frozenset(self.special_ids) - {self.unk_id}
        self._tokens = vocab
        words = [token.content for _, token in added if not token.special]
        plain = all(word.isascii() and " " not in word for word in words)
        self._may_cut = plain and not left and _splits_at_spaces(library)
        self._library = library

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.spec,)

    @classmethod
    def find(cls, folder: Path) -> Spec | None:
        if (folder / "vocab.txt").is_file():  # WordPiece's
            return None
        config = folders.fields_of(folder / folders.CONFIG)
        path = folder / WHOLE if (folder / WHOLE).is_file() else _converted(folder, config)
        if path is None:
            return None
        model = folders.fields_of(path).get("model") or {}
        if model.get("type") not in KINDS:
            return None
        words = model.get("vocab") or {}
        known = {word[0] for word in words} if model["type"] == "Unigram" else set(words)
        usual = next((names for names in USUAL if names["pad_token"] in known), USUAL[0])
        settings: dict[str, Setting] = {**usual}
        for fields in (folders.fields_of(folder / folders.SPECIAL_MAP), config):
            for name in folders.SPECIAL_TOKENS:
                token = fields.get(name)
                token = token.get("content") if isinstance(token, dict) else token
                if isinstance(token, str):
                    settings[name] = token
        return Spec(cls.kind, {WHOLE: path}, {**settings, **folders.side(folder)})

    @classmethod
    def with_defaults(cls, spec: Spec) -> Spec:
        if "lowercase" in spec.settings:
            raise UserError(
                f"model.lowercase: {spec.files[WHOLE]} says how texts are normalized; leave it out"
            )
        return spec

    @classmethod
    def save(cls, spec: Spec, folder: Path) -> None:
        shutil.copyfile(spec.files[WHOLE], folder / WHOLE)
        fields = {n: value for n, value in spec.settings.items() if n != folders.ONE_TYPE}
        fields["tokenizer_class"] = "PreTrainedTokenizerFast"
        fields.setdefault(folders.SIDE, "right")  # whatever tokenizer.json says
        inputs = ["input_ids", "attention_mask"]
        if not spec.settings.get(folders.ONE_TYPE):
            inputs.insert(1, "token_type_ids")
        text = json.dumps({**fields, "model_input_names": inputs}, ensure_ascii=False)
        (folder / folders.CONFIG).write_text(text + "\n", encoding="utf-8")

    def needed(self, wanted: np.ndarray) -> np.ndarray:
        """Added tokens too; of BPE, all that merges make a wanted token of; of Unigram, the token
        with the lowest score, from which the score of unknown characters follows."""
        needed = wanted.copy()
        needed[list(self._library.get_added_tokens_decoder())] = True
        model = self._fields["model"]
        if model["type"] == "Unigram":
            scores = [score for _, score in model["vocab"]]
            needed[scores.index(min(scores))] = True
            return needed
        made_of: dict[str, set[str]] = {}
        for first, second, whole in _merges(model):
            made_of.setdefault(whole, set()).update((first, second))
        waiting = [token for token, number in model["vocab"].items() if needed[number]]
        while waiting:
            for part in made_of.pop(waiting.pop(), ()):
                needed[model["vocab"][part]] = True
                waiting.append(part)
        return needed

    def write_trimmed(self, kept: np.ndarray, folder: Path) -> None:
        fields, new = self._fields, {int(former): number for number, former in enumerate(kept)}
        model = fields["model"]
        if model["type"] == "Unigram":
            model["vocab"] = [model["vocab"][n] for n in kept if n < len(model["vocab"])]
            model["unk_id"] = new.get(model["unk_id"])
        else:
            words = {word: new[n] for word, n in model["vocab"].items() if n in new}
            merges = zip(model["merges"], _merges(model))
            model["merges"] = [merge for merge, (_, _, whole) in merges if whole in words]
            model["vocab"] = words
        for token in fields.get("added_tokens") or []:
            token["id"] = new[token["id"]]
        around = fields["post_processor"]
        for step in around.get("processors") or [around]:
            for end in ("cls", "sep"):
                if end in step:
                    step[end][1] = new[step[end][1]]
            for token in (step.get("special_tokens") or {}).values():
                token["ids"] = [new[number] for number in token["ids"]]
        fields["padding"] = None  # whoever pads asks the tokenizer for its pad_id
        text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
        (folder / WHOLE).write_text(text, encoding="utf-8")

    @property
    def _fields(self) -> folders.Fields:
        return folders.fields_of(self.spec.files[WHOLE])

    def _allowed(self, ids: list[int]) -> list[int]:
        """With the unknown token for those that no text may spell."""
        if self._never.isdisjoint(ids):
            return ids
        return [self.unk_id if number in self._never else number for number in ids]

    def _first(self, text: str, most: int, encode: Callable[..., list[Any]]) -> Any:
        """The library's encoding of a long text, of at least the first `most` tokens: of its first
        words, if there are spaces between them."""
        size = base.CHUNK
        while (space := BETWEEN_WORDS.search(text, size)) is not None:
            [encoding] = encode([text[: space.start()]], add_special_tokens=False)
            if len(encoding.ids) >= most:
                return encoding
            size = 2 * space.start()
        [encoding] = encode([text], add_special_tokens=False)
        return encoding

    @cached_property
    def is_subword(self) -> np.ndarray:
        continues = np.zeros(self.vocab_size, bool)
        for token, number in self._tokens.items():
            continues[number] = not token.startswith(WORD_STARTS)
        continues[list(self.special_ids)] = False
        return continues


def _merges(model: folders.Fields) -> Iterator[tuple[str, str, str]]:
    """Of BPE: two tokens, and the one that they become."""
    prefix = len(model.get("continuing_subword_prefix") or "")
    for merge in model["merges"]:
        first, second = merge.split(" ") if isinstance(merge, str) else merge
        yield first, second, first + second[prefix:]


def _splits_at_spaces(library: tokenizers.Tokenizer) -> bool:
    """Whether a word between spaces gets the ids that it has alone, whatever follows it."""
    normalizer, splitter = _steps(library.normalizer), _steps(library.pre_tokenizer)
    local = all(
        step["type"] in LOCAL or (step["type"] == "Replace" and step["pattern"] in LOCAL_PATTERNS)
        for step in normalizer
    )
    splits = [
        step["type"] in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer")
        or (step["type"] == "ByteLevel" and step.get("use_regex", True))
        or (step["type"] == "Metaspace" and step.get("split", True))
        for step in splitter
    ]
    return local and splits[:1] == [True] and not getattr(library.model, "dropout", None)


def _steps(component: object) -> list[folders.Fields]:
    """A normalizer or pre-tokenizer as tokenizer.json writes it: its steps, if it is a sequence."""
    if component is None:
        return []
    step = json.loads(component.__getstate__())  # type: ignore[attr-defined]
    return step.get("normalizers") or step.get("pretokenizers") or [step]


def _converted(folder: Path, config: folders.Fields) -> Path | None:
    """The tokenizer.json of a folder that has the files of either kind; None if it has neither."""
    if (folder / PIECES).is_file():
        fields = folders.fields_of(folder / "config.json", "configuration")
        names = f"{config.get('tokenizer_class', '')} {fields.get('model_type')}".lower()
        is_camembert = sentencepiece.CAMEMBERT in names
        family = sentencepiece.CAMEMBERT if is_camembert else sentencepiece.XLM_ROBERTA
        key = f"{family}-{files.sha256(folder / PIECES)[:32]}"
        made = files.cached(
            f"tokenizer-{key}",
            lambda new: sentencepiece.convert(folder / PIECES, family).save(str(new / WHOLE)),
        )
    elif (folder / VOCAB).is_file() and (folder / MERGES).is_file():
        spaced = bool(config.get("add_prefix_space", False))
        hashes = "-".join(files.sha256(folder / name)[:16] for name in (VOCAB, MERGES))
        made = files.cached(
            f"tokenizer-bpe-{hashes}-{int(spaced)}",
            lambda new: _byte_level(folder, spaced).save(str(new / WHOLE)),
        )
    else:
        return None
    return made / WHOLE


def _byte_level(folder: Path, spaced: bool) -> tokenizers.Tokenizer:
    """RoBERTa's: byte-level BPE (Radford et al. 2019) and its template."""
    vocab, merges = folder / VOCAB, folder / MERGES
    words = charset.read_json(vocab, "vocabulary")
    lacking = [token for token in USUAL[0].values() if token not in words]
    if lacking:
        raise UserError(f"{vocab}: the vocabulary lacks {', '.join(lacking)}; give RoBERTa's")
    lines = charset.read_text(merges, "list of merges").split("\n")
    lines = [line for line in lines if line and not line.startswith("#version")]
    pairs = [(first, second) for first, _, second in (line.partition(" ") for line in lines)]
    try:
        library = tokenizers.Tokenizer(models.BPE(words, pairs))
    except Exception as error:  # the library raises plain Exception, or TypeError
        raise UserError(f"{merges} does not go with {VOCAB} beside it: {error}") from None
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    library.add_special_tokens(list(USUAL[0].values()))
    library.post_processor = processors.RobertaProcessing(
        ("</s>", words["</s>"]), ("<s>", words["<s>"]), add_prefix_space=spaced
    )
    return library


def _template(library: tokenizers.Tokenizer, path: Path) -> Template:
    """What the post-processor puts around texts, seen from what it makes of two."""
    single, pair = library.encode("a"), library.encode("a", "b")
    where, ids, types = pair.sequence_ids, pair.ids, pair.type_ids
    firsts = [at for at, number in enumerate(where) if number == 0]
    seconds = [at for at, number in enumerate(where) if number == 1]
    if not firsts or not seconds or max(firsts) > min(seconds):
        raise UserError(f"{path}: its post_processor does not put one text after the other")
    before, between, after = (
        ids[: firsts[0]], ids[firsts[-1] + 1 : seconds[0]], ids[seconds[-1] + 1 :]
    )  # fmt: skip
    alone = [at for at, number in enumerate(single.sequence_ids) if number == 0]
    same = (before, after) == (single.ids[: alone[0]], single.ids[alone[-1] + 1 :])
    if not before or not after or not same or types != sorted(types) or max(types) > 1:
        raise UserError(f"{path}: its post_processor is not that of BERT or of RoBERTa")
    in_first = sum(kind == 0 for kind in types[firsts[-1] + 1 : seconds[0]])
    return Template(tuple(before), tuple(between), tuple(after), in_first, one_type=not any(types))
