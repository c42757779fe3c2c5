"""Text files in other encodings are told by name, with the line and what converts them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetbert import config
from fleetbert.core import charset
from fleetbert.core.errors import UserError
from fleetbert.data import read, tokenizers
from fleetbert.data.tokenizers.wordpiece import SPECIAL_TOKENS

CHINESE = "label\ttext_a\n好\t今天天气很好，我们去公园散步\n坏\t这个电影太无聊了\n"
GERMAN = "label\ttext_a\ngut\tEin schöner Abend für alle\nschlecht\tgrößer, aber müde\n"
CASES = [
    (CHINESE, "gbk", "GBK", "gbk"),
    (GERMAN, "latin1", "Latin-1", "latin1"),
    (GERMAN.replace("Abend", "“Abend”"), "cp1252", "Windows-1252", "cp1252"),
    (GERMAN, "utf-16", "UTF-16", "utf-16"),
    (CHINESE, "utf-16", "UTF-16", "utf-16"),
    (GERMAN, "utf-16-le", "UTF-16 without", "utf-16le"),
    (GERMAN, "utf-16-be", "UTF-16 without", "utf-16be"),
    (GERMAN, "utf-32", "UTF-32", "utf-32"),
]


def of_folder(path):
    (path.parent / "vocab.txt").write_text("\n".join(SPECIAL_TOKENS))
    return tokenizers.open(tokenizers.find(path.parent))


READERS = {
    "vocab.txt": lambda path: tokenizers.open(tokenizers.of_vocab(path, True)),
    "tokenizer.json": of_folder,
    "tokenizer_config.json": of_folder,
    "special_tokens_map.json": of_folder,
    "table.tsv": lambda path: read.read_as(
        path, read.table_format(path, pair=False, labelled=True)
    ),
    "texts.txt": lambda path: read.read_as(path, read.texts_format(path)),
    "job.yaml": lambda path: config.load_as(config.Config, str(path), []),
}


@pytest.mark.parametrize("name", READERS)
def test_every_reader_says_the_same(tmp_path, name):
    path = tmp_path / name
    for text, codec, title, iconv in CASES:
        path.write_bytes(text.encode(codec))
        with pytest.raises(UserError) as caught:
            READERS[name](path)
        message = str(caught.value)
        assert f"looks like {title}" in message
        assert message.endswith(f"convert the file: `iconv -f {iconv} -t utf-8`")
        line = 2 if codec in ("gbk", "latin1", "cp1252") else 1
        assert f"{path}:{line}: " in message or f"{path}, line {line}: " in message


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_utf8_has_no_problem(text):
    assert charset.problem(text.encode()) is None


@given(data=st.binary())
def test_any_bytes_are_text_or_have_a_problem(data):
    said = charset.problem(data)
    try:
        sound = "\0" not in data.decode("utf-8")
    except UnicodeDecodeError:
        sound = False
    assert (said is None) == sound


def test_bytes_that_are_no_text_are_not_called_one():
    assert "is the file text?" in str(charset.problem(bytes(range(256)) * 4))
