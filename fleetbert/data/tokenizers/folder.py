"""What the files of a model's folder say of a WordPiece tokenizer.

tokenizer.json is read first, then tokenizer_config.json, special_tokens_map.json and
added_tokens.json, as Hugging Face and PaddleNLP write them. What is not honoured is refused by
name: texts would silently become other tokens than those that the model was trained with.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, Dict, Mapping

from fleetbert.bundle import Setting
from fleetbert.core import charset
from fleetbert.core.errors import UserError

Settings = Dict[str, Setting]
Fields = Dict[str, Any]  # of a JSON file

# Of BertNormalizer: those that a bundle need not name, and how they are then. strip_accents is as
# `lowercase` where nothing is said.
NORMALIZATION: Settings = {"tokenize_chinese_chars": True, "clean_text": True}
SPECIAL_TOKENS: dict[str, str] = {
    f"{name.lower()}_token": f"[{name}]" for name in ("PAD", "UNK", "CLS", "SEP", "MASK")
}
# All tokens are of one type: the family of the model has no other. No file of a folder says it.
ONE_TYPE = "one_type"
# "left": texts lose their beginning where they are too long. Not named: their end.
SIDE, SIDES = "truncation_side", ("left", "right")
KNOWN = ("lowercase", "strip_accents", ONE_TYPE, SIDE, *NORMALIZATION, *SPECIAL_TOKENS)

CONFIG, WHOLE = "tokenizer_config.json", "tokenizer.json"
SPECIAL_MAP, ADDED = "special_tokens_map.json", "added_tokens.json"
# Keys of tokenizer_config.json that change what texts become, and the one value that is supported.
ONLY: Fields = {
    "do_basic_tokenize": True,
    "do_word_tokenize": True,
    "do_subword_tokenize": True,
    "word_tokenizer_type": "basic",
    "subword_tokenizer_type": "wordpiece",
    "never_split": [],
}
# The same of `model` in tokenizer.json.
MODEL: Fields = {
    "type": "WordPiece", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
}  # fmt: skip
# The library's names of BertNormalizer's fields, and ours.
FIELDS = {
    "lowercase": "lowercase",
    "strip_accents": "strip_accents",
    "handle_chinese_chars": "tokenize_chinese_chars",
    "clean_text": "clean_text",
}
CONFIG_FIELDS = {"do_lower_case" if name == "lowercase" else name: name for name in FIELDS.values()}

_log = logging.getLogger(__name__)


def read(folder: Path, vocab: Mapping[str, int] | None) -> Settings:
    """The settings that the folder's files name; without `lowercase` where none says it.

    vocab: the folder's vocabulary, if it has one. UserError names what is not supported.
    """
    config, whole = fields_of(folder / CONFIG), fields_of(folder / WHOLE)
    special_map, added = fields_of(folder / SPECIAL_MAP), fields_of(folder / ADDED)
    for key, only in ONLY.items():
        if config.get(key) not in (None, only):
            _refuse(folder / CONFIG, key, config[key], f"only {json.dumps(only)} is")
    special = {**SPECIAL_TOKENS, **_special_tokens(folder / SPECIAL_MAP, special_map)}
    special.update(_special_tokens(folder / CONFIG, config))
    settings = _of_fields(folder / CONFIG, config, CONFIG_FIELDS)
    if whole:
        normal = _of_normalizer(folder / WHOLE, whole.get("normalizer"))
        differing = [name for name in settings if name in normal and settings[name] != normal[name]]
        if differing:
            _log.info(
                "%s: %s and %s differ in %s; %s holds",
                folder, WHOLE, CONFIG, ", ".join(differing), WHOLE,
            )  # fmt: skip
        settings = normal
        special.update(_of_whole(folder / WHOLE, whole, special, vocab))
    ids = {token: number for token, number in added.items() if isinstance(number, int)}
    for number, token in (config.get("added_tokens_decoder") or {}).items():
        ids[_content(folder / CONFIG, "added_tokens_decoder", token)] = int(number)
    for token in whole.get("added_tokens") or []:
        ids[_content(folder / WHOLE, "added_tokens", token)] = token["id"]
    more = [*(config.get("additional_special_tokens") or [])]
    more += special_map.get("additional_special_tokens") or []
    names = [_content(folder / CONFIG, "additional_special_tokens", token) for token in more]
    _check_added(folder, [*ids, *names], ids, special, vocab)
    spelled = {name: token for name, token in special.items() if token != SPECIAL_TOKENS[name]}
    return {**settings, **spelled, **side(folder)}


def side(folder: Path) -> Settings:
    """The setting of a folder whose texts lose their beginning; {} of the others.

    tokenizer_config.json holds over tokenizer.json, as in transformers.
    """
    name = fields_of(folder / CONFIG).get(SIDE)
    if name is None:
        name = ((fields_of(folder / WHOLE).get("truncation") or {}).get("direction") or "").lower()
    elif name not in SIDES:
        _refuse(folder / CONFIG, SIDE, name, "left and right are")
    return {SIDE: "left"} if name == "left" else {}


def fields_of_config(settings: Settings) -> Fields:
    """What tokenizer_config.json says of these settings."""
    fields: Fields = {
        "do_lower_case" if name == "lowercase" else name: value
        for name, value in settings.items()
        if name != ONE_TYPE
    }
    if settings.get(ONE_TYPE):
        fields["model_input_names"] = ["input_ids", "attention_mask"]
    return {**fields, "tokenizer_class": "BertTokenizer"}


def fields_of(path: Path, what: str = "tokenizer") -> Fields:
    """Of a JSON file; none where there is no file."""
    return charset.read_json(path, what) if path.exists() else {}


def _refuse(path: Path, key: str, value: object, supported: str) -> None:
    text = json.dumps(value, ensure_ascii=False)
    text = text if len(text) <= 80 else f"{text[:77]}..."
    raise UserError(f"{path}: {key} is {text}, which is not supported: {supported}")


def _content(path: Path, key: str, token: object) -> str:
    """A token, which files write as it is or with how it is found in texts."""
    content = token.get("content") if isinstance(token, dict) else token
    if not isinstance(content, str):
        _refuse(path, key, token, "a token is a text")
    return str(content)


def _special_tokens(path: Path, fields: Fields) -> dict[str, str]:
    return {
        name: _content(path, name, fields[name])
        for name in SPECIAL_TOKENS
        if fields.get(name) is not None
    }


def _of_fields(path: Path, fields: Fields, names: Mapping[str, str], prefix: str = "") -> Settings:
    """The settings that a file's fields say; names: theirs, and ours."""
    settings: Settings = {}
    for key, name in names.items():
        value = fields.get(key)
        if value is not None and not isinstance(value, bool):
            _refuse(path, f"{prefix}{key}", value, "true or false is")
        if value is not None and value != NORMALIZATION.get(name):
            settings[name] = value
    return settings


def _of_normalizer(path: Path, normalizer: Any) -> Settings:
    if normalizer is None:  # texts stay as they are
        return {"lowercase": False, "tokenize_chinese_chars": False, "clean_text": False}
    kind = normalizer.get("type") if isinstance(normalizer, dict) else None
    if kind == "Sequence" and len(normalizer.get("normalizers") or []) == 1:
        return _of_normalizer(path, normalizer["normalizers"][0])
    if kind != "BertNormalizer":
        _refuse(path, "normalizer", normalizer, "BertNormalizer and null are")
    return _of_fields(path, normalizer, FIELDS, "normalizer.")


def _of_whole(
    path: Path, whole: Fields, special: Mapping[str, str], vocab: Mapping[str, int] | None
) -> dict[str, str]:
    """Special tokens as tokenizer.json has them; the rest of it is as BERT's or refused."""
    model = whole.get("model") or {}
    for key, only in MODEL.items():
        if model.get(key, only) != only:
            _refuse(path, f"model.{key}", model[key], f"only {json.dumps(only)} is")
    pre_tokenizer = (whole.get("pre_tokenizer") or {}).get("type")
    if pre_tokenizer != "BertPreTokenizer":
        _refuse(path, "pre_tokenizer", pre_tokenizer, "BertPreTokenizer is")
    words = model.get("vocab")
    if vocab is not None and words is not None and words != vocab:
        raise UserError(
            f"{path} and vocab.txt beside it are different vocabularies; remove the one that is "
            "not the model's"
        )
    special_tokens = {"unk_token": str(model.get("unk_token", special["unk_token"]))}
    around = whole.get("post_processor")
    if around is None:
        return special_tokens
    if around.get("type") == "BertProcessing":
        ends = [around["cls"][0], around["sep"][0]]
    elif around.get("type") == "TemplateProcessing":
        parts = [next(iter(part.items())) for part in around.get("single", [])]
        if [kind for kind, _ in parts] != ["SpecialToken", "Sequence", "SpecialToken"]:
            _refuse(path, "post_processor.single", around.get("single"), "[CLS] text [SEP] is")
        ends = [parts[0][1]["id"], parts[2][1]["id"]]
    else:
        _refuse(path, "post_processor", around.get("type"), "BertProcessing and a template are")
    return {**special_tokens, "cls_token": ends[0], "sep_token": ends[1]}


def _check_added(
    folder: Path,
    tokens: list[str],
    ids: Mapping[str, int],
    special: Mapping[str, str],
    vocab: Mapping[str, int] | None,
) -> None:
    strange = sorted(set(tokens) - set(special.values()))
    if strange:
        names = ", ".join(strange[:8]) + (f" and {len(strange) - 8} more" if strange[8:] else "")
        raise UserError(
            f"{folder}: its tokenizer adds tokens that are found whole in texts, which is not "
            f"supported: {names}; remove them from {ADDED}, {CONFIG}, {SPECIAL_MAP} and {WHOLE} "
            "if your texts do not hold them"
        )
    for token, number in ids.items():
        if vocab is not None and vocab.get(token) != number:
            raise UserError(
                f"{folder}: {token} has the id {number} among the added tokens, but vocab.txt has "
                f"{'no such token' if token not in vocab else f'it in line {vocab[token] + 1}'}; "
                "take the vocab.txt that the model was trained with"
            )
