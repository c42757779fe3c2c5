"""Families of encoders: how the files of each become the one network that everything here runs.

That network is PaddleNLP's BertModel. A family whose encoder differs from BERT in names, in the
keys of its config.json, or in what can be folded into BERT's tensors, is one `Family`, given to
`register`. Tensors are NumPy arrays. Under the network's names a Linear weight is (in, out); in
Hugging Face's files it is (out, in).

What is folded (folds.py):
- RoBERTa's positions begin after the padding id: the rows before are dropped.
- A model with one type of tokens, or none, gets a second row that no token has: `one_type`.
- ERNIE's first task is added to the types of tokens.
- ALBERT's one layer is repeated; what is trained of it is written as a BERT's layers.
- A classifier's own first layer becomes the pooler, with its own activation: `pooler_act`.

tests/models/test_encoders.py compares each with what transformers computes.
"""

from __future__ import annotations

import re
from typing import Callable, Mapping, NamedTuple, Tuple, cast

import numpy as np

from fleetbert.core.registry import Registry
from fleetbert.models import folds
from fleetbert.models.network import (
    ANSWERS,
    CLASSIFIER,
    ENCODER,
    FIELDS,
    HEADS,
    POOLER,
    PROJECTION,
    QA_OUTPUTS,
    TASKS,
    TOKENS,
    WORDS,
    Fields,
    Loaded,
    Shape,
    Tensors,
)

Pieces = Tuple[Tuple[str, str], ...]


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
    fold: Callable[[Loaded], Loaded] = folds.unchanged
    unfold: Callable[[Loaded], Loaded] = folds.unchanged
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


def _classes(stem: str) -> dict[str, str]:
    """The classes in transformers, where they are called as BERT's are."""
    return {"classifier": f"{stem}ForSequenceClassification", "masked_words": f"{stem}ForMaskedLM"}


def _one_group(fields: Fields) -> str:
    for key in ("num_hidden_groups", "inner_group_num"):
        if fields.get(key, 1) != 1:
            return f"config.json says {key}: {fields[key]}; only one layer may be repeated"
    return ""


BERT = Family(
    "bert",
    "BERT",
    pieces=(*ENCODER_PIECES, *PREDICTIONS),
    former=((".gamma", ".weight"), (".beta", ".bias")),  # of LayerNorm
    architectures=_classes("Bert"),
    fold=folds.fold_one_type,
    unfold=folds.unfold_types,
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
    fold=folds.fold_roberta,
    unfold=folds.unfold_roberta,
)
ERNIE = BERT._replace(
    model_type="ernie",
    title="ERNIE",
    prefix="ernie.",
    architectures=_classes("Ernie"),
    paddlenlp=(("cls.predictions.decoder_weight", "cls.predictions.decoder.weight"),),
    fixed_there={"layer_norm_eps": 1e-12},
    fold=folds.fold_ernie,
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
    fold=folds.fold_types,
    unfold=folds.unfold_distilbert,
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
    fold=folds.fold_one_type,
    unfold=folds.unfold_types,
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
    fold=folds.fold_albert,
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


def register(family: Family) -> None:
    families[family.model_type] = family


def named(family: Family, fields: Fields) -> dict[str, str]:
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
    for field, key in named(family, fields).items():
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
