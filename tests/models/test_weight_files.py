"""Files of weights: bfloat16, float16, shards; and what is told of others."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from safetensors.numpy import save_file

from fleetbert import config
from fleetbert.core.errors import UserError
from fleetbert.models import sources, weight_files, weights

from paddlenlp.transformers import BertTokenizer  # isort: skip  after fleetbert.compat

RNG = np.random.default_rng(0)
TENSORS = {
    "a.weight": RNG.normal(size=(3, 4)).astype(np.float32),
    "a.bias": RNG.normal(size=5).astype(np.float32) * 1e-3,
    "b.weight": np.float32([[0, -0.0], [1e-40, 3e38]]),
}


def write_safetensors(path, tensors):
    """The format by its specification: names → (type, shape, bytes)."""
    header, data = {}, b""
    for name, (kind, shape, content) in tensors.items():
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": offsets}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def bfloat16(array):
    """(stored bytes, value): truncated to sixteen bits, one number after the other."""
    halves = [struct.pack("<f", value)[2:] for value in array.ravel()]
    values = [struct.unpack("<f", b"\0\0" + half)[0] for half in halves]
    return b"".join(halves), np.float32(values).reshape(array.shape)


def test_bfloat16_beside_other_types(tmp_path):
    stored = {name: ("BF16", array.shape, bfloat16(array)[0]) for name, array in TENSORS.items()}
    stored["half"] = ("F16", (2,), np.float16([1.5, -2]).tobytes())
    stored["whole"] = ("F32", (2,), np.float32([1.25, -7]).tobytes())
    stored["double"] = ("F64", (1,), np.float64([0.5]).tobytes())
    stored["embeddings.position_ids"] = ("I64", (2,), np.int64([0, 1]).tobytes())
    write_safetensors(tmp_path / "model.safetensors", stored)
    read = weight_files.read(tmp_path)
    assert {array.dtype for array in read.values()} == {np.dtype(np.float32)}
    for name, array in TENSORS.items():
        np.testing.assert_array_equal(read.pop(name), bfloat16(array)[1])
    assert {n: a.tolist() for n, a in read.items()} == {
        "half": [1.5, -2], "whole": [1.25, -7], "double": [0.5],
    }  # fmt: skip


@pytest.fixture
def shards(tmp_path):
    parts = {"model-00001-of-00002.safetensors": ["a.weight", "a.bias"],
             "model-00002-of-00002.safetensors": ["b.weight"]}  # fmt: skip
    for file, names in parts.items():
        save_file({name: TENSORS[name] for name in names}, tmp_path / file)
    places = {name: file for file, names in parts.items() for name in names}
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


def test_shards(shards):
    read = weight_files.read(shards)
    assert set(read) == set(TENSORS)
    for name, array in TENSORS.items():
        np.testing.assert_array_equal(read[name], array)


def test_damaged_shards(shards):
    second, index = (shards / n for n in ("model-00002-of-00002.safetensors", weight_files.INDEX))
    save_file({"c": TENSORS["a.bias"]}, second)
    with pytest.raises(UserError, match=r"names b\.weight, but model-00002.* lacks it"):
        weight_files.read(shards)
    second.unlink()
    with pytest.raises(UserError, match=r"the shard model-00002-of-00002\.safetensors, which"):
        weight_files.read(shards)
    for text in ("{", "[]", '{"weight_map": 3}', "{}"):
        index.write_text(text)
        with pytest.raises(UserError, match="is no index of shards"):
            weight_files.read(shards)


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("tf_model.h5", b"", "from_tf=True"),
        ("flax_model.msgpack", b"", "from_flax=True"),
        ("adapter_config.json", b"{}", "only an adapter"),
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        ("model_state.pdparams", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        ("pytorch_model.bin", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        ("pytorch_model.bin", b"PK\x03\x04", "pytorch_model.bin: "),
        ("other", b"", "holds neither"),
    ],
)
def test_others_are_refused_with_what_to_do(tmp_path, file, content, sentence):
    (tmp_path / file).write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        weight_files.read(tmp_path)


@pytest.mark.parametrize("kind", ["I8", "U8", "F8_E4M3"])
def test_quantized_weights_are_refused_by_type(tmp_path, kind):
    write_safetensors(tmp_path / "model.safetensors", {"w": (kind, (2,), b"ab")})
    with pytest.raises(UserError, match=f"w in .* is {kind}; weights of F64, F32, F16, BF16 are"):
        weight_files.read(tmp_path)


def source(folder):
    return sources.open_source(config.Model(init=str(folder)))


def test_a_folder_without_config(tmp_path):
    save_file(TENSORS, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"has no config\.json, which says the model's shape; copy"):
        source(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(UserError, match="model has one; name that folder"):
        source(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match="is a bundle, which is only served"):
        source(tmp_path)


def test_a_vocabulary_in_tokenizer_json_alone(tmp_path, tiny_vocab, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tokens = tiny_vocab.read_text(encoding="utf-8").split("\n")[:-1]
    vocab = {token: number for number, token in reversed(list(enumerate(tokens)))}
    normalizer = {"type": "BertNormalizer", "lowercase": False}
    whole = {"model": {"type": "WordPiece", "vocab": vocab}, "normalizer": normalizer,
             "pre_tokenizer": {"type": "BertPreTokenizer"}}  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole))
    spec = weights.tokenizers.find(tmp_path)
    assert (spec.kind, spec.settings) == ("wordpiece", {"lowercase": False})
    assert spec.files["vocab.txt"].read_text(encoding="utf-8").split("\n")[:-1] == tokens
    assert weights.tokenizers.find(tmp_path).files == spec.files  # made once


def test_what_paddlenlp_saves_of_a_tokenizer_is_read(tmp_path, tiny_vocab):
    BertTokenizer(str(tiny_vocab), do_lower_case=False).save_pretrained(str(tmp_path))
    assert weights.tokenizers.find(tmp_path).settings == {"lowercase": False}
