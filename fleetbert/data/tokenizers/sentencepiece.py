"""A SentencePiece model of XLM-RoBERTa's or CamemBERT's → Hugging Face's tokenizer.json.

Both families came from fairseq, whose ids are not the model's: its own special tokens come first,
and the model's pieces after them. The file is a message of protobuf, of which three fields are
read: https://github.com/google/sentencepiece, sentencepiece_model.proto.
"""

from __future__ import annotations

from pathlib import Path

import tokenizers
from google.protobuf import descriptor_pb2, message, message_factory, text_format
from tokenizers import Regex, models, normalizers, pre_tokenizers, processors

from fleetbert.core.errors import UserError

UNIGRAM = 1  # trainer_spec.model_type
XLM_ROBERTA, CAMEMBERT = "xlm-roberta", "camembert"


# Of sentencepiece_model.proto, what is read.
SCHEMA = """
name: "fleetbert/sentencepiece.proto"
package: "sentencepiece_read"
message_type {
  name: "Model"
  field { name: "pieces" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: "Piece" }
  field { name: "trainer" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: "Trainer" }
  field { name: "normal" number: 3 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: "Normal" }
}
message_type {
  name: "Piece"
  field { name: "piece" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "score" number: 2 label: LABEL_OPTIONAL type: TYPE_FLOAT }
}
message_type {
  name: "Trainer"
  field { name: "model_type" number: 3 label: LABEL_OPTIONAL type: TYPE_INT32 default_value: "1" }
}
message_type {
  name: "Normal"
  field { name: "charsmap" number: 2 label: LABEL_OPTIONAL type: TYPE_BYTES }
}
"""


def convert(path: Path, family: str) -> tokenizers.Tokenizer:
    """The tokenizer of such a file as the family uses it. UserError for other files."""
    try:
        known, charsmap = read(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path} is no Unigram model of SentencePiece ({error})") from None
    first = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces = first + known[3:]
    if family == CAMEMBERT:
        unused = [("<s>NOTUSED", 0.0), ("<pad>", 0.0), ("</s>NOTUSED", 0.0), ("<unk>", 0.0)]
        pieces = [*unused, ("<unk>NOTUSED", -100.0), *known[1:]]
    pieces.append(("<mask>", 0.0))
    library = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=3))
    parts = [normalizers.Precompiled(charsmap)] if charsmap else []
    library.normalizer = normalizers.Sequence([*parts, normalizers.Replace(Regex(" {2,}"), " ")])
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    library.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[(token, library.token_to_id(token)) for token in ("<s>", "</s>")],
    )
    return library


def read(data: bytes) -> tuple[list[tuple[str, float]], bytes]:
    """The pieces of a ModelProto with their scores, the logarithms of chances, and its compiled
    normalizer. ValueError if it is not of a Unigram model."""
    schema = text_format.Parse(SCHEMA, descriptor_pb2.FileDescriptorProto())
    try:
        model = message_factory.GetMessages([schema])[f"{schema.package}.Model"].FromString(data)
    except message.DecodeError as error:
        raise ValueError(str(error)) from None
    if model.trainer.model_type != UNIGRAM:
        raise ValueError(f"its model_type is {model.trainer.model_type}")
    if len(model.pieces) < 4:
        raise ValueError("it holds no pieces")
    return [(piece.piece, piece.score) for piece in model.pieces], model.normal.charsmap
