"""What a model's folder says of its tokenizer, beside Hugging Face `tokenizers`."""

from __future__ import annotations

import itertools
import json
import logging
import random
import shutil

import pytest
import tokenizer_files
from tokenizers import Tokenizer as Library
from tokenizers.implementations import BertWordPieceTokenizer

from fleetbert.core.errors import UserError
from fleetbert.data import tokenizers

SPECIAL = {name: f"[{name[:3].upper()}]" for name in ("pad_token", "unk_token", "cls_token")}
SPECIAL.update(sep_token="[SEP]", mask_token="[MASK]")
OTHERS = {name: f"<{name[:-6]}>" for name in SPECIAL}
LETTERS = "möchteMÖCHTEeÉé\u0301中文ÅåİI ,.\t\u200b\u00a0…“x"
FLAGS = list(itertools.product([True, False], [True, False, None], [True, False], [True, False]))


def words(special):
    characters = sorted({*LETTERS, *LETTERS.lower(), "a", "o", "O", "i", "\u0307", "\u0308"})
    characters = [one for one in characters if not one.isspace()]
    tokens = [*special.values(), *characters, "中文", "mochte", "möchte"]
    return [*tokens, *(f"##{one}" for one in characters)]


def texts():
    chance = random.Random(3)
    some = ["".join(chance.choices(LETTERS, k=chance.randint(0, 14))) for _ in range(100)]
    return [*some, "möchte", "Möchte mochte", "中文 x", "İ"]


def library(special=SPECIAL, **settings) -> BertWordPieceTokenizer:
    vocab = {token: number for number, token in enumerate(words(special))}
    return BertWordPieceTokenizer(vocab, **special, **settings)


def write(folder, special=SPECIAL, **files):
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(words(special)) + "\n", encoding="utf-8")
    for name, fields in files.items():
        (folder / f"{name}.json").write_text(json.dumps(fields), encoding="utf-8")
    return folder


def opened(folder, lowercase=None):
    return tokenizers.open(tokenizers.changed(tokenizers.find(folder), None, lowercase))


def same(tokenizer, wanted):
    for text in texts():
        # Alone, where most words are remembered, and beside what the library has to read.
        (alone,), (beside, _) = (
            tokenizer.encode(some, None, 99).ids for some in ([text], [text, "か"])
        )
        assert alone.tolist() == beside.tolist() == wanted.encode(text).ids, ascii(text)


@pytest.mark.parametrize(("lower", "strip", "chinese", "clean"), FLAGS)
def test_the_normalizer_of_tokenizer_json_holds_and_is_kept(tmp_path, lower, strip, chinese, clean):
    wanted = library(
        lowercase=lower, strip_accents=strip, handle_chinese_chars=chinese, clean_text=clean
    )
    folder = write(tmp_path / "model", tokenizer_config={"do_lower_case": not lower})
    wanted.save(str(folder / "tokenizer.json"))
    tokenizer = opened(folder)
    same(tokenizer, wanted)
    tokenizers.save(tokenizer.spec, tmp_path)
    assert tokenizers.differing(opened(tmp_path).spec, tokenizer.spec) == {}
    if not clean:  # transformers takes it from there only
        same(tokenizer, Library.from_file(str(tmp_path / "tokenizer.json")))


@pytest.mark.parametrize(("lower", "strip", "chinese", "_"), FLAGS[::2])
def test_what_tokenizer_config_says(tmp_path, lower, strip, chinese, _):
    config = {
        "do_lower_case": lower, "strip_accents": strip, "tokenize_chinese_chars": chinese,
        "tokenizer_class": "BertTokenizer", "never_split": None, "do_basic_tokenize": True,
    }  # fmt: skip
    folder = write(tmp_path / "model", tokenizer_config=config)
    tokenizer = opened(folder)
    same(tokenizer, library(lowercase=lower, strip_accents=strip, handle_chinese_chars=chinese))
    tokenizers.save(tokenizer.spec, tmp_path)
    saved = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert [saved.get(key, default) for key, default in (
        ("do_lower_case", None), ("strip_accents", None), ("tokenize_chinese_chars", True),
    )] == [lower, strip, chinese]  # fmt: skip


def test_no_normalizer_at_all(tmp_path):
    folder = write(tmp_path / "model")
    fields = json.loads(library().to_str())
    (folder / "tokenizer.json").write_text(json.dumps({**fields, "normalizer": None}))
    tokenizer = opened(folder)
    same(tokenizer, Library.from_file(str(folder / "tokenizer.json")))
    same(tokenizer, library(lowercase=False, handle_chinese_chars=False, clean_text=False))


@pytest.mark.parametrize(
    ("config", "whole", "left"),
    [(None, None, False), ("left", None, True), ("right", "Left", False), (None, "Left", True)],
)
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_which_side_of_a_long_text_is_lost(tmp_path, monkeypatch, family, config, whole, left):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "model"
    if family == "bert":
        write(folder)
        library().save(str(folder / "tokenizer.json"))
    else:
        made = tokenizers.find(tokenizer_files.write(folder, family)).files["tokenizer.json"]
        shutil.copyfile(made, folder / "tokenizer.json")
    fields = json.loads((folder / "tokenizer.json").read_text())
    if whole is not None:
        how = {"max_length": 4, "strategy": "OnlyFirst", "stride": 0}
        fields["truncation"] = {"direction": whole, **how}
    (folder / "tokenizer.json").write_text(json.dumps(fields))
    said = {} if config is None else {"truncation_side": config}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    tokenizer = opened(folder, lowercase=True if family == "bert" else None)
    first, long = ("x", "x ,.") if family == "bert" else ("a", "a b c d")
    [found] = tokenizer.encode([long], None, 3).ids
    [kept] = tokenizer.encode([first], None, 3).ids
    assert (found.tolist() != kept.tolist()) == left
    (tmp_path / "saved").mkdir()
    tokenizers.save(tokenizer.spec, tmp_path / "saved")
    [again] = opened(tmp_path / "saved").encode([long], None, 3).ids
    assert again.tolist() == found.tolist()


def test_a_default_is_told_and_the_job_decides(tmp_path, caplog):
    folder = write(tmp_path / "model", tokenizer_config={"strip_accents": False})
    caplog.set_level(logging.INFO, "fleetbert")
    assert opened(folder, lowercase=False).lowercase is False
    assert caplog.messages == []
    same(opened(folder), library(lowercase=True, strip_accents=False))
    (line,) = caplog.messages
    assert "says whether texts are lower-cased; they are (model.lowercase: false" in line
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    library(lowercase=False).save(str(folder / "tokenizer.json"))
    opened(folder)
    assert "differ in lowercase; tokenizer.json holds" in caplog.messages[-1]


@pytest.mark.parametrize("name", ["tokenizer_config", "special_tokens_map"])
@pytest.mark.parametrize("write_token", [str, lambda token: {"content": token, "lstrip": False}])
def test_special_tokens_of_another_spelling(tmp_path, name, write_token):
    fields = {key: write_token(token) for key, token in OTHERS.items()}
    added = {token: number for number, token in enumerate(OTHERS.values())}
    folder = write(tmp_path / "model", OTHERS, **{name: fields}, added_tokens=added)
    tokenizer = opened(folder, lowercase=True)
    assert tokenizer.special_ids == (0, 1, 2, 3, 4)
    same(tokenizer, library(OTHERS))
    tokenizers.save(tokenizer.spec, tmp_path)
    same(opened(tmp_path), library(OTHERS))


def test_special_tokens_of_tokenizer_json(tmp_path):
    some = {"pad_token": "<pad>", "mask_token": "<mask>"}
    folder = write(tmp_path / "model", OTHERS, special_tokens_map=some)
    library(OTHERS).save(str(folder / "tokenizer.json"))
    same(opened(folder), library(OTHERS))


TEMPLATE = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}]}


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"added_tokens": {"[E1]": 900, "[E2]": 901}}, r"not supported: \[E1\], \[E2\]; remove"),
        ({"added_tokens": {"[CLS]": 3}}, r"\[CLS\] has the id 3 .* it in line 3"),
        ({"special_tokens_map": {"additional_special_tokens": ["[E1]"]}}, r"\[E1\]"),
        ({"tokenizer_config": {"added_tokens_decoder": {"7": {"content": "[E1]"}}}}, r"\[E1\]"),
        ({"special_tokens_map": {"sep_token": "</s>"}}, "vocabulary lacks </s>"),
        ({"tokenizer_config": {"strip_accents": "no"}}, 'strip_accents is "no"'),
        ({"tokenizer_config": {"do_lower_case": 1}}, "do_lower_case is 1"),
        ({"tokenizer_config": {"do_basic_tokenize": False}}, "do_basic_tokenize is false"),
        ({"tokenizer_config": {"word_tokenizer_type": "mecab"}}, 'word_tokenizer_type is "mecab"'),
        ({"tokenizer_config": {"truncation_side": "top"}}, 'truncation_side is "top"'),
        ({"tokenizer_config": {"never_split": ["a"]}}, r'never_split is \["a"\]'),
        ({"tokenizer": {"normalizer": {"type": "NFKC"}}}, "normalizer is .*NFKC.*BertNormalizer"),
        ({"tokenizer": {"pre_tokenizer": {"type": "Whitespace"}}}, 'pre_tokenizer is "Whitespace"'),
        ({"tokenizer": {"model": {"type": "BPE"}}}, 'model.type is "BPE"'),
        ({"tokenizer": {"model": {"type": "WordPiece", "vocab": {"a": 0}}}}, "different vocabular"),
        ({"tokenizer": {"post_processor": TEMPLATE}}, r"post_processor\.single is .*\[CLS\] text"),
        ({"tokenizer": {"added_tokens": [{"id": 9, "content": "[E9]"}]}}, r"supported: \[E9\]"),
    ],
)  # fmt: skip
def test_what_is_not_honoured_is_refused_by_name(tmp_path, files, sentence):
    whole = json.loads(library().to_str())
    files = {n: {**whole, **fields} if n == "tokenizer" else fields for n, fields in files.items()}
    with pytest.raises(UserError, match=sentence):
        opened(write(tmp_path / "model", **files), lowercase=True)


def test_an_unknown_setting_of_a_bundle_is_named(tmp_path):
    spec = tokenizers.of_vocab(write(tmp_path / "model") / "vocab.txt", True)
    with pytest.raises(UserError, match="does not know the tokenizer's setting fold_width"):
        tokenizers.open(spec._replace(settings={"lowercase": True, "fold_width": True}))


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "[]", '"a"', ""])
def test_a_file_that_holds_no_object_is_refused_by_name(tmp_path, text):
    folder = write(tmp_path / "model")
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(UserError, match=r"tokenizer\.json: the tokenizer (is no|holds no) JSON"):
        opened(folder)


def test_a_byte_order_mark_is_passed_over(tmp_path):
    folder = write(tmp_path / "model")
    fields = json.dumps({"do_lower_case": False}).encode()
    (folder / "tokenizer_config.json").write_bytes(b"\xef\xbb\xbf" + fields)
    assert opened(folder).encode(["Möchte"], None, 99).ids[0].tolist()
