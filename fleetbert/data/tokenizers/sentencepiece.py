"""A SentencePiece model of XLM-RoBERTa's or CamemBERT's → Hugging Face's tokenizer.json.

Both families came from fairseq, whose ids are not the model's: its own special tokens come first,
and the model's pieces after them. The file is a message of protobuf, of which three fields are
read: https://github.com/google/sentencepiece, sentencepiece_model.proto.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Iterator, NamedTuple

import tokenizers
from tokenizers import Regex, models, normalizers, pre_tokenizers, processors

from fleetbert.errors import UserError

UNIGRAM = 1  # trainer_spec.model_type
XLM_ROBERTA, CAMEMBERT = "xlm-roberta", "camembert"


class Model(NamedTuple):
    """pieces: with their scores, the logarithms of chances; charsmap: the compiled normalizer."""

    pieces: list[tuple[str, float]]
    charsmap: bytes


def convert(path: Path, family: str) -> tokenizers.Tokenizer:
    """The tokenizer of such a file as the family uses it. UserError for other files."""
    try:
        model = read(path.read_bytes())
    except (ValueError, IndexError, struct.error) as error:
        raise UserError(f"{path} is no Unigram model of SentencePiece ({error})") from None
    first = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces = first + model.pieces[3:]
    if family == CAMEMBERT:
        unused = [("<s>NOTUSED", 0.0), ("<pad>", 0.0), ("</s>NOTUSED", 0.0), ("<unk>", 0.0)]
        pieces = [*unused, ("<unk>NOTUSED", -100.0), *model.pieces[1:]]
    pieces.append(("<mask>", 0.0))
    found = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=3))
    parts = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    found.normalizer = normalizers.Sequence([*parts, normalizers.Replace(Regex(" {2,}"), " ")])
    found.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    found.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    found.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[(token, found.token_to_id(token)) for token in ("<s>", "</s>")],
    )
    return found


def read(data: bytes) -> Model:
    """The fields of a ModelProto. ValueError if it is not of a Unigram model."""
    pieces, charsmap = [], b""
    for field, value in _fields(data):
        if field == 1 and isinstance(value, bytes):
            piece = dict(_fields(value))
            text, score = piece[1], piece.get(2, b"\0\0\0\0")
            if not isinstance(text, bytes) or not isinstance(score, bytes):
                raise ValueError("a piece without its text")
            pieces.append((text.decode(), struct.unpack("<f", score)[0]))
        elif field == 2 and isinstance(value, bytes):
            kind = dict(_fields(value)).get(3, UNIGRAM)
            if kind != UNIGRAM:
                raise ValueError(f"its model_type is {kind!r}")
        elif field == 3 and isinstance(value, bytes):
            found = dict(_fields(value)).get(2, b"")
            charsmap = found if isinstance(found, bytes) else b""
    if len(pieces) < 4:
        raise ValueError("it holds no pieces")
    return Model(pieces, charsmap)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values of a message's fields, fixed ones as bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        number = shift = 0
        while True:
            byte = data[at]
            at += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number

    while at < len(data):
        key = varint()
        wire = key & 7
        if wire == 0:
            yield key >> 3, varint()
            continue
        if wire not in (1, 2, 5):
            raise ValueError(f"wire type {wire}")
        size = varint() if wire == 2 else 8 if wire == 1 else 4
        if at + size > len(data):
            raise ValueError("it ends early")
        yield key >> 3, data[at : at + size]
        at += size
