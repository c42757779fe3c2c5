"""Families of encoders: how the files of each become the one network that everything here runs.

That network is PaddleNLP's BertModel. A family whose encoder differs from BERT in names, in the
keys of its config.json, or in what can be folded into BERT's tensors, is one `Family`, given to
`register`. Tensors are NumPy arrays. Under the network's names a Linear weight is (in, out); in
Hugging Face's files it is (out, in).
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, NamedTuple, Tuple, TypedDict, cast

import numpy as np

from fleetbert.registry import Registry

Tensors = Dict[str, np.ndarray]
Fields = Dict[str, Any]  # of a config.json
Pieces = Tuple[Tuple[str, str], ...]


class Shape(TypedDict, total=False):
    """What shapes the network, by BERT's names in config.json."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    kept_heads: int  # of each layer; in no file: after pruning, while it trains
    intermediate_size: int
    hidden_act: str
    hidden_dropout_prob: float
    attention_probs_dropout_prob: float
    max_position_embeddings: int
    type_vocab_size: int
    initializer_range: float
    layer_norm_eps: float
    pad_token_id: int


FIELDS: list[str] = [field for field in Shape.__annotations__ if field != "kept_heads"]

# Begin the names of the encoder and of heads, in the network.
ENCODER = "bert."
HEADS = ("bert.pooler.", "classifier.", "cls.", "qa_outputs.")


class Loaded(NamedTuple):
    """Tensors under the network's names, and their shape."""

    tensors: Tensors
    shape: Shape


def unchanged(loaded: Loaded) -> Loaded:
    return loaded


def _absolute_only(fields: Fields) -> str:
    relative = fields.get("position_embedding_type", "absolute") != "absolute"
    return "relative position embeddings are not supported" if relative else ""


class Family(NamedTuple):
    """How the files of one family are read and written.

    model_type: what config.json calls it. title: what messages do.
    prefix: begins its encoder's tensors in files that have heads as well.
    pieces: of Hugging Face's names, and what stands for each in the network's, in the order in
        which they are replaced, either way. former: of older files, only read.
    paddlenlp: the same of PaddleNLP's files, where its names are not BERT's.
    keys: what config.json calls a field of Shape, where not as BERT's does.
    architectures: the class in transformers for each head (`models.heads`).
    cannot: why a config.json is of no network that folds into ours; "" if it does.
    fold: from the family's tensors and shape, under the network's names, to the network's.
    unfold: back, for saving.
    """

    model_type: str
    title: str
    pieces: Pieces
    architectures: Mapping[str, str]
    prefix: str = ENCODER
    former: Pieces = ()
    paddlenlp: Pieces = ()
    keys: Mapping[str, str] = {}
    cannot: Callable[[Fields], str] = _absolute_only
    fold: Callable[[Loaded], Loaded] = unchanged
    unfold: Callable[[Loaded], Loaded] = unchanged


BERT = Family(
    "bert",
    "BERT",
    pieces=(
        ("encoder.layer.", "encoder.layers."),
        ("attention.self.query", "self_attn.q_proj"),
        ("attention.self.key", "self_attn.k_proj"),
        ("attention.self.value", "self_attn.v_proj"),
        ("attention.output.dense", "self_attn.out_proj"),
        ("attention.output.LayerNorm", "norm1"),
        ("intermediate.dense", "linear1"),
        ("predictions.transform.dense", "predictions.transform"),
        ("predictions.transform.LayerNorm", "predictions.layer_norm"),
        ("embeddings.LayerNorm", "embeddings.layer_norm"),
        ("output.LayerNorm", "norm2"),
        ("output.dense", "linear2"),
        ("cls.predictions.bias", "cls.predictions.decoder_bias"),
    ),
    former=((".gamma", ".weight"), (".beta", ".bias")),  # of LayerNorm
    architectures={
        "classifier": "BertForSequenceClassification",
        "masked_words": "BertForMaskedLM",
    },
)

families: Registry[Family] = Registry("model_type", {BERT.model_type: BERT})


def register(family: Family) -> None:
    families.add(family.model_type, family)


def read(family: Family, fields: Fields, files: Tensors) -> Loaded:
    """What the files of a family hold, as the network's. KeyError names an embedding that they
    lack."""
    files = _unwrapped(files)
    ours = any("encoder.layers." in name for name in files)  # PaddleNLP's names and layout
    tensors = {}
    for old, array in files.items():
        name = _replaced(old, family, family.paddlenlp if ours else family.pieces + family.former)
        tensors[name] = array if ours else _turn(name, array)
    keys = {field: family.keys.get(field, field) for field in FIELDS}
    shape = cast(Shape, {field: fields[key] for field, key in keys.items() if key in fields})
    shape.setdefault("vocab_size", len(tensors["bert.embeddings.word_embeddings.weight"]))
    return family.fold(Loaded(tensors, shape))


def write(family: Family, loaded: Loaded, head: str) -> tuple[Fields, Tensors]:
    """Fields of config.json and tensors of the network with such a head, as Hugging Face's files
    of the family have them."""
    tensors, shape = family.unfold(loaded)
    files = {}
    for name, array in tensors.items():
        new = name
        for theirs, own in family.pieces:
            new = new.replace(own, theirs)
        if new.startswith(ENCODER):
            new = family.prefix + new[len(ENCODER) :]
        files[new] = _turn(name, array)
    fields: Fields = {family.keys.get(field, field): value for field, value in shape.items()}
    fields.update(architectures=[family.architectures[head]], model_type=family.model_type)
    return fields, files


# What wrappers of a whole network put before all names: PyTorch's of data parallel, torch.compile.
WRAPPERS = ("module.", "_orig_mod.")


def _unwrapped(files: Tensors) -> Tensors:
    for wrapper in WRAPPERS:
        if all(name.startswith(wrapper) for name in files):
            return _unwrapped({name[len(wrapper) :]: array for name, array in files.items()})
    return files


def _replaced(name: str, family: Family, pieces: Pieces) -> str:
    if name.startswith(family.prefix):
        name = ENCODER + name[len(family.prefix) :]
    for theirs, own in pieces:
        name = name.replace(theirs, own)
    return name if name.startswith((ENCODER, *HEADS)) else ENCODER + name


def _turn(name: str, array: np.ndarray) -> np.ndarray:
    """Transpose the weight of a Linear layer; embeddings and vectors stay."""
    tied = "embeddings" in name or name == "cls.predictions.decoder.weight"
    return np.ascontiguousarray(array.T) if array.ndim == 2 and not tied else array
