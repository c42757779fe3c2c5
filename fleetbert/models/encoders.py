"""Families of encoders: how the files of each become the one network that everything here runs.

That network is PaddleNLP's BertModel. A family whose encoder differs from BERT in names, in the
keys of its config.json, or in what can be folded into BERT's tensors, is one `Family`, given to
`register`. Tensors are NumPy arrays. Under the network's names a Linear weight is (in, out); in
Hugging Face's files it is (out, in).

What is folded:
- RoBERTa's positions begin after the padding id: the rows before are dropped.
- A model with one type of tokens, or none, gets a second row that no token has: `one_type`.
- ERNIE's first task is added to the types of tokens.
- ALBERT's one layer is repeated; what is trained of it is written as a BERT's layers.
- A classifier's own first layer becomes the pooler, with its own activation: `pooler_act`.

tests/models/test_encoders.py compares each with what transformers computes.
"""

from __future__ import annotations

import json
import re
from typing import Any, Callable, Dict, Mapping, NamedTuple, Tuple, TypedDict, cast, get_type_hints

import numpy as np

from fleetbert.core.registry import Registry

Tensors = Dict[str, np.ndarray]
Fields = Dict[str, Any]  # of a config.json
Pieces = Tuple[Tuple[str, str], ...]


class Shape(TypedDict, total=False):
    """What shapes the network, by BERT's names in config.json."""

    vocab_size: int
    hidden_size: int
    embedding_size: int  # of embeddings that are projected to hidden_size
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
    pooler_act: str  # in no file: after the pooler; tanh where nothing is said
    predictions_act: str  # in no file: of the head for words; hidden_act where nothing is said
    one_type: bool  # in no file: the family has one type of tokens, so that all are of type 0
    pooling: str  # in another file: how tokens become a vector, see `models.pooling`


NOT_IN_FILES = ("kept_heads", "pooler_act", "predictions_act", "one_type", "pooling")
FIELDS: list[str] = [field for field in Shape.__annotations__ if field not in NOT_IN_FILES]
KINDS = get_type_hints(Shape)

WORDS, POSITIONS, TYPES = (
    f"bert.embeddings.{name}_embeddings.weight" for name in ("word", "position", "token_type")
)
PROJECTION = "bert.project.weight"  # after the embeddings, where they are narrower than the layers
TASKS = "bert.embeddings.task_type_embeddings.weight"  # ERNIE's

# Begin the names of the encoder and of heads, in the network.
ENCODER = "bert."
POOLER = "bert.pooler."
TOKENS, ANSWERS = "tokens", "answers"  # the heads that have none, see `models.task_heads`
CLASSIFIER, QA_OUTPUTS = "classifier.", "qa_outputs."  # the latter of transformers' files
HEADS = (POOLER, CLASSIFIER, "cls.", QA_OUTPUTS)


class Loaded(NamedTuple):
    """Tensors under the network's names, and their shape."""

    tensors: Tensors
    shape: Shape


def unchanged(loaded: Loaded) -> Loaded:
    return loaded


# Keys of a config.json, transformers' or PaddleNLP's, that change what an encoder computes and are
# no fields of Shape: what the network computes, which null and a file without the key mean too, and
# why another value is refused. The others change nothing here: use_cache, chunk_size_feed_forward,
# what is returned; sinusoidal_pos_embds stands in DistilBERT's weights, and summary_* is of a head
# of ELECTRA's that nothing here has.
ONLY: dict[str, tuple[object, str]] = {
    "position_embedding_type": ("absolute", "relative position embeddings are not supported"),
    "is_decoder": (False, "tokens that see only those before them are not supported"),
    "add_cross_attention": (False, "attention to another network's tokens is not supported"),
    "is_encoder_decoder": (False, "networks with a decoder are not supported"),
    "pool_act": ("tanh", "a pooler without tanh is not supported"),  # PaddleNLP's
    "task_id": (0, "only task 0 is supported"),  # of PaddleNLP's ERNIE
    "pruned_heads": ({}, "layers that lack heads are not supported; take the model unpruned"),
    "quantization_config": (None, "take the model as it was before it was quantized"),
}


def _folds(_: Fields) -> str:
    return ""


class Family(NamedTuple):
    """How the files of one family are read and written.

    model_type: what config.json calls it. title: what messages do.
    prefix: begins its encoder's tensors in files that have heads as well.
    pieces: of Hugging Face's names, and what stands for each in the network's, in the order in
        which they are replaced, either way. former: of older files, only read.
    classifier: the same of its classifier's, in Hugging Face's files and PaddleNLP's.
    paddlenlp: the same of PaddleNLP's files, where its names are not BERT's.
    unused: begin the names of heads that nothing here has.
    keys: what config.json calls a field of Shape, where not as BERT's does. repeated: fields of
        Shape that it says once more, by the other name.
    defaults: of a field that config.json does not name.
    fixed: of a field, whatever config.json says. fixed_there: of PaddleNLP's files alone.
    pooler_act: after its pooler, or its classifier's first layer.
    architectures: the class in transformers for each head (`models.task_heads`).
    cannot: why a config.json is of no network that folds into ours, besides ONLY; "" if it does.
    fold: from the family's tensors and shape, under the network's names, to the network's.
    unfold: back, for saving.
    written: the family that it is saved as, where it is another.
    """

    model_type: str
    title: str
    pieces: Pieces
    architectures: Mapping[str, str]
    prefix: str = ENCODER
    former: Pieces = ()
    classifier: Pieces = ()
    paddlenlp: Pieces = ()
    unused: tuple[str, ...] = ()
    keys: Mapping[str, str] = {}
    repeated: Mapping[str, str] = {}
    defaults: Shape = Shape()
    fixed: Shape = Shape()
    fixed_there: Shape = Shape()
    pooler_act: str = "tanh"
    cannot: Callable[[Fields], str] = _folds
    fold: Callable[[Loaded], Loaded] = unchanged
    unfold: Callable[[Loaded], Loaded] = unchanged
    written: str = ""


ENCODER_PIECES: Pieces = (
    ("encoder.layer.", "encoder.layers."),
    ("attention.self.query", "self_attn.q_proj"),
    ("attention.self.key", "self_attn.k_proj"),
    ("attention.self.value", "self_attn.v_proj"),
    ("attention.output.dense", "self_attn.out_proj"),
    ("attention.output.LayerNorm", "norm1"),
    ("intermediate.dense", "linear1"),
    ("embeddings.LayerNorm", "embeddings.layer_norm"),
    ("output.LayerNorm", "norm2"),
    ("output.dense", "linear2"),
)
PREDICTIONS: Pieces = (
    ("predictions.transform.dense", "predictions.transform"),
    ("predictions.transform.LayerNorm", "predictions.layer_norm"),
    ("cls.predictions.bias", "cls.predictions.decoder_bias"),
)
LM_HEAD: Pieces = (
    ("lm_head.dense", "cls.predictions.transform"),
    ("lm_head.layer_norm", "cls.predictions.layer_norm"),
    ("lm_head.decoder.", "cls.predictions.decoder."),
    ("lm_head.bias", "cls.predictions.decoder_bias"),
)
TWO_LAYERS: Pieces = (
    ("classifier.out_proj.", "classifier."),
    ("classifier.dense.", "bert.pooler.dense."),
)


def _fold_types(loaded: Loaded) -> Loaded:
    """A second row beside the one of a family without types of tokens, or with one. No token has
    it: the tokenizer is told (`one_type`)."""
    tensors, shape = loaded
    types = tensors.get(TYPES)
    if types is None:
        types = np.zeros((1, tensors[WORDS].shape[1]), tensors[WORDS].dtype)
    if len(types) > 1:
        return loaded
    return Loaded(
        {**tensors, TYPES: types.repeat(2, 0)}, {**shape, "type_vocab_size": 2, "one_type": True}
    )


def _fold_one_type(loaded: Loaded) -> Loaded:
    return _fold_types(loaded) if TYPES in loaded.tensors else loaded


def _unfold_types(loaded: Loaded) -> Loaded:
    tensors, shape = loaded
    if not shape.get("one_type"):
        return loaded
    return Loaded({**tensors, TYPES: tensors[TYPES][:1]}, {**shape, "type_vocab_size": 1})


def _fold_roberta(loaded: Loaded) -> Loaded:
    """Positions count from the padding id: the first token has the row after it."""
    tensors, shape = loaded
    positions = tensors[POSITIONS][shape["pad_token_id"] + 1 :]
    shape = {**shape, "max_position_embeddings": len(positions)}
    return _fold_types(Loaded({**tensors, POSITIONS: positions}, shape))


def _unfold_roberta(loaded: Loaded) -> Loaded:
    tensors, shape = _unfold_types(loaded)
    positions = np.pad(tensors[POSITIONS], ((shape["pad_token_id"] + 1, 0), (0, 0)))
    shape = {**shape, "max_position_embeddings": len(positions)}
    return Loaded({**tensors, POSITIONS: positions}, shape)


def _fold_ernie(loaded: Loaded) -> Loaded:
    """Every token is of the first task, as transformers and PaddleNLP take it without
    task_type_ids. It is written back as an ERNIE without tasks."""
    tensors = dict(loaded.tensors)
    if TASKS in tensors:
        tensors[TYPES] = tensors[TYPES] + tensors.pop(TASKS)[0]
    return _fold_one_type(Loaded(tensors, loaded.shape))


def _unfold_distilbert(loaded: Loaded) -> Loaded:
    """Its tokens have no types. Those of type 0 are all there are, so their row goes into each
    position's."""
    tensors, shape = dict(loaded.tensors), loaded.shape.copy()
    tensors[POSITIONS] = tensors[POSITIONS] + tensors.pop(TYPES)[0]
    return Loaded(tensors, shape)


def _classes(stem: str) -> dict[str, str]:
    """The classes in transformers, where they are called as BERT's are."""
    return {"classifier": f"{stem}ForSequenceClassification", "masked_words": f"{stem}ForMaskedLM"}


def _one_group(fields: Fields) -> str:
    for key in ("num_hidden_groups", "inner_group_num"):
        if fields.get(key, 1) != 1:
            return f"config.json says {key}: {_short(fields[key])}; only one layer may be repeated"
    return ""


def _fold_albert(loaded: Loaded) -> Loaded:
    """Its one layer, as often as the network has layers."""
    tensors, shape = loaded
    first = "bert.encoder.layers.0."
    repeated = {
        name.replace(first, f"bert.encoder.layers.{number}."): array
        for number in range(shape["num_hidden_layers"])
        for name, array in tensors.items()
        if name.startswith(first)
    }
    return Loaded({**tensors, **repeated}, shape)


BERT = Family(
    "bert",
    "BERT",
    pieces=(*ENCODER_PIECES, *PREDICTIONS),
    former=((".gamma", ".weight"), (".beta", ".bias")),  # of LayerNorm
    architectures=_classes("Bert"),
    fold=_fold_one_type,
    unfold=_unfold_types,
)
ROBERTA = Family(
    "roberta",
    "RoBERTa",
    prefix="roberta.",
    pieces=(*ENCODER_PIECES, *LM_HEAD),
    classifier=TWO_LAYERS,
    paddlenlp=LM_HEAD,
    architectures=_classes("Roberta"),
    defaults={"pad_token_id": 1},
    fixed={"predictions_act": "gelu"},
    fold=_fold_roberta,
    unfold=_unfold_roberta,
)
ERNIE = BERT._replace(
    model_type="ernie",
    title="ERNIE",
    prefix="ernie.",
    architectures=_classes("Ernie"),
    paddlenlp=(("cls.predictions.decoder_weight", "cls.predictions.decoder.weight"),),
    fixed_there={"layer_norm_eps": 1e-12},
    fold=_fold_ernie,
)
VOCAB_HEAD: Pieces = (
    ("vocab_transform", "cls.predictions.transform"),
    ("vocab_layer_norm", "cls.predictions.layer_norm"),
    ("vocab_projector.bias", "cls.predictions.decoder_bias"),
    ("vocab_projector.weight", "cls.predictions.decoder.weight"),
)
DISTILBERT = Family(
    "distilbert",
    "DistilBERT",
    prefix="distilbert.",
    pieces=(
        ("transformer.layer.", "encoder.layers."),
        ("attention.q_lin", "self_attn.q_proj"),
        ("attention.k_lin", "self_attn.k_proj"),
        ("attention.v_lin", "self_attn.v_proj"),
        ("attention.out_lin", "self_attn.out_proj"),
        ("sa_layer_norm", "norm1"),
        ("ffn.lin1", "linear1"),
        ("ffn.lin2", "linear2"),
        ("output_layer_norm", "norm2"),
        ("embeddings.LayerNorm", "embeddings.layer_norm"),
        *VOCAB_HEAD,
    ),
    paddlenlp=VOCAB_HEAD,
    classifier=(("pre_classifier.", "bert.pooler.dense."),),
    architectures=_classes("DistilBert"),
    keys={
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    },
    fixed={"layer_norm_eps": 1e-12},
    pooler_act="relu",
    fold=_fold_types,
    unfold=_unfold_distilbert,
)
PROJECTED: Pieces = (("embeddings_project.", "project."),)
ELECTRA = Family(
    "electra",
    "ELECTRA",
    prefix="electra.",
    pieces=(*ENCODER_PIECES, *PROJECTED),
    classifier=TWO_LAYERS,
    paddlenlp=PROJECTED,
    unused=("discriminator_predictions.", "generator_predictions.", "generator_lm_head."),
    architectures={"classifier": "ElectraForSequenceClassification"},
    repeated={"embedding_size": "hidden_size"},
    defaults={"num_attention_heads": 4, "embedding_size": 128},
    pooler_act="gelu",
    fold=_fold_one_type,
    unfold=_unfold_types,
)
ALBERT = Family(
    "albert",
    "ALBERT",
    prefix="albert.",
    pieces=(
        ("encoder.embedding_hidden_mapping_in.", "project."),
        ("encoder.albert_layer_groups.0.albert_layers.0.", "encoder.layers.0."),
        ("attention.query", "self_attn.q_proj"),
        ("attention.key", "self_attn.k_proj"),
        ("attention.value", "self_attn.v_proj"),
        ("attention.dense", "self_attn.out_proj"),
        ("attention.LayerNorm", "norm1"),
        ("ffn.", "linear1."),
        ("ffn_output.", "linear2."),
        ("full_layer_layer_norm", "norm2"),
        ("embeddings.LayerNorm", "embeddings.layer_norm"),
        ("bert.pooler.", "bert.pooler.dense."),
        ("predictions.dense", "cls.predictions.transform"),
        ("predictions.LayerNorm", "cls.predictions.layer_norm"),
        ("predictions.decoder.", "cls.predictions.decoder."),
        ("predictions.bias", "cls.predictions.decoder_bias"),
    ),
    unused=("sop_classifier.",),
    architectures=_classes("Albert"),
    defaults={
        "embedding_size": 128,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
    cannot=_one_group,
    fold=_fold_albert,
    written="bert",
)

XLM_ROBERTA = ROBERTA._replace(
    model_type="xlm-roberta", title="XLM-RoBERTa", architectures=_classes("XLMRoberta")
)
CAMEMBERT = ROBERTA._replace(
    model_type="camembert", title="CamemBERT", architectures=_classes("Camembert")
)
BUILT_IN = (BERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, ERNIE, DISTILBERT, ELECTRA, ALBERT)
families: Registry[Family] = Registry("model_type", {f.model_type: f for f in BUILT_IN})

LARGEST_EPSILON = 1e-3  # of Paddle's LayerNorm

# Why others do not fold into the network.
REFUSED: dict[str, str] = {
    "big_bird": "its attention skips most tokens",
    "convbert": "half of its attention is a convolution",
    "deberta": "its attention scores depend on relative positions",
    "deberta-v2": "its attention scores depend on relative positions",
    "ernie_m": "PaddleNLP writes it in a layout of its own",
    "funnel": "its layers get shorter",
    "longformer": "its attention skips most tokens",
    "mobilebert": "its layers have bottlenecks",
    "modernbert": "its positions are rotations, and its norms stand before its layers",
    "mpnet": "its attention scores depend on relative positions",
    "nomic_bert": "its positions are rotations",
    "roformer": "its positions are rotations",
    "xlnet": "its attention scores depend on relative positions",
}


def register(family: Family) -> None:
    families[family.model_type] = family


def refusal(family: Family, fields: Fields) -> str:
    """Why a config.json is of no network that folds into ours; "" if it does."""
    for key, (only, reason) in ONLY.items():
        if fields.get(key) not in (None, only):
            return f"config.json says {key}: {_short(fields[key])}; {reason}"
    for field, key in _named(family, fields).items():
        value, kind = fields[key], KINDS[field]
        if value is None and field == "pad_token_id" and "pad_token_id" not in family.defaults:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, kind) if kind is float else kind):
            expected = "a text" if kind is str else "a number"
            return (
                f"config.json says {key}: {_short(value)}; it has to be {expected}, the model's own"
            )
        if field == "layer_norm_eps" and not 0 <= value <= LARGEST_EPSILON:
            return f"config.json says {key}: {value}; Paddle takes 0 to {LARGEST_EPSILON}"
    return family.cannot(fields)


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _named(family: Family, fields: Fields) -> dict[str, str]:
    """The fields of Shape that a config.json names, and its keys; PaddleNLP's are BERT's."""
    keys = {}
    for field in FIELDS:
        for key in (field, family.keys.get(field, field)):
            if key in fields:
                keys[field] = key
    return keys


def is_paddlenlps(files: Tensors) -> bool:
    """Whether files have PaddleNLP's names and layout, which the network has, or Hugging Face's."""
    return any("encoder.layers." in name for name in files)


def read(family: Family, fields: Fields, files: Tensors) -> Loaded:
    """What the files of a family hold, as the network's. KeyError names an embedding that they
    lack."""
    files = _unwrapped(files)
    ours = is_paddlenlps(files)
    pieces = (family.paddlenlp if ours else family.pieces + family.former) + family.classifier
    tensors = {}
    # The encoder first: its pooler gives way to a classifier's own first layer.
    for old in sorted(files, key=lambda name: not name.startswith(family.prefix)):
        if not old.startswith(family.unused):
            name = _replaced(old, family, pieces)
            tensors[name] = files[old] if ours else _turn(name, files[old])
    if not fields.get("use_task_id"):
        tensors.pop(TASKS, None)
    shape = family.defaults.copy()
    for field, key in _named(family, fields).items():
        if fields[key] is not None:
            shape = cast(Shape, {**shape, field: fields[key]})
    shape.update(family.fixed)
    if ours:
        shape.update(family.fixed_there)
    shape.setdefault("vocab_size", len(tensors[WORDS]))
    if PROJECTION not in tensors:
        shape.pop("embedding_size", None)
    if family.pooler_act != "tanh":
        shape["pooler_act"] = family.pooler_act
    return family.fold(Loaded(tensors, shape))


def write(
    family: Family, loaded: Loaded, head: str, paddlenlp: bool = False
) -> tuple[Fields, Tensors]:
    """Fields of config.json and tensors of the network with such a head, as Hugging Face's files
    of the family have them, or as PaddleNLP's."""
    family = families[family.written] if family.written else family
    tensors, shape = family.unfold(loaded)
    pieces = family.paddlenlp if paddlenlp else family.pieces
    pieces += family.classifier if head == "classifier" else ()
    if head == ANSWERS and not paddlenlp:
        pieces += ((QA_OUTPUTS, CLASSIFIER),)
    files = {}
    for name, array in tensors.items():
        if head in (TOKENS, ANSWERS) and name.startswith(POOLER):
            continue
        new = name
        for theirs, ours in pieces:
            new = new.replace(ours, theirs)
        if new.startswith(ENCODER):
            new = family.prefix + new[len(ENCODER) :]
        files[new] = array if paddlenlp else _turn(name, array)
    keys = {} if paddlenlp else family.keys
    fields: Fields = {keys.get(n, n): value for n, value in shape.items() if n in FIELDS}
    for key, field in family.repeated.items():
        fields.setdefault(key, fields[field])
    known, bare = family.architectures, family.architectures["classifier"].partition("For")[0]
    usual = {TOKENS: "ForTokenClassification", ANSWERS: "ForQuestionAnswering"}.get(head, "Model")
    fields.update(architectures=[known.get(head, f"{bare}{usual}")], model_type=family.model_type)
    return fields, files


def of_constructors(fields: Fields) -> Fields:
    """The config.json of a model_config.json, PaddleNLP's of before version 2.5: the arguments of
    the network's constructor, among them those of its encoder's."""
    merged: Fields = {"pad_token_id": 0}  # PaddleNLP's, of all families
    for inner in fields.get("init_args") or []:
        if isinstance(inner, dict):
            merged.update(of_constructors(inner))
    merged.update({name: value for name, value in fields.items() if name != "init_args"})
    kind = str(merged.get("init_class"))
    names = (family.architectures["classifier"] for family in families.values())
    known = dict(zip((name.partition("For")[0] for name in names), families))
    return {**merged, "model_type": known.get(re.sub("(Model|For.*)$", "", kind), kind)}


# What stands before all names where a network was wrapped: by PyTorch's data parallel, by
# torch.compile, in a LightningModule.
WRAPPERS = ("module.", "_orig_mod.", "model.")


def _unwrapped(files: Tensors) -> Tensors:
    for wrapper in WRAPPERS:
        if all(name.startswith(wrapper) for name in files):
            return _unwrapped({name[len(wrapper) :]: array for name, array in files.items()})
    return files


def _replaced(name: str, family: Family, pieces: Pieces) -> str:
    if name.startswith(family.prefix):
        name = ENCODER + name[len(family.prefix) :]
    for theirs, ours in pieces:
        name = name.replace(theirs, ours)
    return name if name.startswith((ENCODER, *HEADS)) else ENCODER + name


def _turn(name: str, array: np.ndarray) -> np.ndarray:
    """Transpose the weight of a Linear layer; embeddings and vectors stay."""
    tied = "embeddings" in name or name == "cls.predictions.decoder.weight"
    return np.ascontiguousarray(array.T) if array.ndim == 2 and not tied else array
