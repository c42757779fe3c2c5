"""Loading a source's weights into a network, and saving them as transformers opens them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import MappingProxyType
from typing import Mapping, NamedTuple, Sequence

import numpy as np
from paddle import nn
from safetensors.numpy import save_file

from fleetbert.core import files
from fleetbert.core.errors import UserError
from fleetbert.data import tokenizers
from fleetbert.data.tokenizers import Spec
from fleetbert.models import encoders, pooling
from fleetbert.models.bert import BertConfig
from fleetbert.models.network import (
    ANSWERS,
    CLASSIFIER,
    HEADS,
    LAYERS,
    POSITIONS,
    QA_OUTPUTS,
    TYPES,
    WORDS,
    Loaded,
    Tensors,
)
from fleetbert.models.sources import DECODER, Source


def digest(tokenizer: Spec, tensors: Tensors | None = None) -> str:
    """A hash of a tokenizer's files and perhaps of weights, wherever they were read."""
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


def bert_config(
    source: Source, num_labels: int, vocab_size: int, pad_id: int | None = None
) -> BertConfig:
    """The network's config for a source. The vocabulary must fit into the word embeddings.

    UserError where its sizes are not those of its weights, before a network of them is built.
    pad_id: the tokenizer's, by which batches are padded. config.json may name another: that of
    multilingual-e5 does.
    """
    shape = source.shape if pad_id is None else {**source.shape, "pad_token_id": pad_id}
    config = BertConfig(num_labels=num_labels, **shape)
    _check_sizes(config, source)
    if vocab_size > source.shape["vocab_size"]:
        vocab = next(iter(source.tokenizer.files.values()))
        raise UserError(
            f"model.vocab: {vocab} has {vocab_size} tokens, but the weights of "
            f"{source.name} have embeddings for {source.shape['vocab_size']}; take the vocabulary "
            "that they were trained with, or model.init: random"
        )
    return config


# The sizes of a network, and the tensors whose axis is as large.
SIZES = (
    ("vocab_size", WORDS, 0),
    ("max_position_embeddings", POSITIONS, 0),
    ("type_vocab_size", TYPES, 0),
    ("hidden_size", f"{LAYERS}0.linear1.weight", 0),
    ("intermediate_size", f"{LAYERS}0.linear1.weight", 1),
)


def _check_sizes(config: BertConfig, source: Source) -> None:
    tensors = source.tensors or {}
    told = [
        (field, getattr(config, field), tensors[name].shape[axis])
        for field, name, axis in SIZES
        if name in tensors and tensors[name].ndim > axis
    ]
    layers = {name[len(LAYERS) :].partition(".")[0] for name in tensors if name.startswith(LAYERS)}
    if config.num_hidden_layers > len(layers) > 0:  # `load` names the tensors of one too many
        told.append(("num_hidden_layers", config.num_hidden_layers, len(layers)))
    for field, size, found in told:
        if size != found:
            raise UserError(
                f"model.init {source.name}: config.json says {field}: {size}, and the weights have "
                f"{found}; copy both from where the model is from"
            )
    if config.hidden_size % config.num_attention_heads:
        raise UserError(
            f"model.init {source.name}: config.json says num_attention_heads: "
            f"{config.num_attention_heads}, which does not divide hidden_size "
            f"{config.hidden_size}; copy it from where the model is from"
        )


def load(network: nn.Layer, source: Source, labels: Sequence[str] = ()) -> LoadReport:
    """Put the source's tensors into the network.

    Every tensor is accounted for: one of the encoder that is missing, of another shape, or one
    that no BERT has raises UserError with its name; heads are reported, but for what the network
    has and does not read. `labels` are those of the network's logits: each gets what the source's
    classifier has for it, wherever that stands, and one that the classifier lacks starts fresh (see
    `describe_head`).
    """
    if source.tensors is None:
        return LoadReport([], [])
    tensors = source.tensors
    if network.head == ANSWERS:
        tensors = {name.replace(QA_OUTPUTS, CLASSIFIER): array for name, array in tensors.items()}
    state = network.network.state_dict()
    missing = [n for n in state if n not in tensors]
    unexpected = [n for n in tensors if n not in state]
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
    words, decoder = (tensors.get(name) for name in (WORDS, DECODER))
    tied = words is None or decoder is None or np.array_equal(words, decoder)
    if DECODER in state and not tied:
        raise UserError(
            f"model.init {source.name}: its masked-word head has weights of its own beside the "
            "embeddings (tie_word_embeddings: false), which is not supported; take a model that "
            "shares them, or remove the head's weights"
        )
    rows = match_labels(source.head_labels, labels)
    for name, array in tensors.items():
        if name not in state:
            continue
        tensor, values = state[name], None
        if name.startswith("classifier.") and rows is not None:
            known = rows >= 0
            if known.any():
                values = tensor.numpy()  # (hidden, labels) or (labels)
                values[..., known] = array[..., rows[known]]
        elif list(array.shape) == list(tensor.shape):
            values = array.astype("float32")
        elif not name.startswith(HEADS):
            raise UserError(
                f"model.init {source.name}: {name} has the shape {list(array.shape)}, "
                f"the network needs {list(tensor.shape)}"
            )
        if values is None:  # a head of other labels, or of another number
            missing.append(name)
            unexpected.append(name)
        else:
            tensor.set_value(values)
    # The bias of the masked-word head stands under two names, tied.
    fresh = [n for n in missing if not (_tied(n, tensors) or n.startswith(network.unread))]
    return LoadReport(sorted(fresh), sorted(unexpected))


def match_labels(known: Sequence[str], labels: Sequence[str]) -> np.ndarray | None:
    """int64 [labels]: the place of each label among the `known` ones, -1 where it is not there.

    None where names tell nothing: one side has none, or `known` are transformers' LABEL_0, ...
    These do stand for labels that are numbers.
    """
    if not known or not labels:
        return None
    if list(known) == [f"LABEL_{number}" for number in range(len(known))]:
        if not all(label.isdecimal() for label in labels):
            return None
        known = [name[len("LABEL_") :] for name in known]
    places = {name: place for place, name in enumerate(known)}
    return np.array([places.get(label, -1) for label in labels], np.int64)


def describe_head(source: Source, labels: Sequence[str]) -> str | None:
    """What became of a source's classifier in a network with `labels`; None: it was kept as it
    is, or there was none."""
    head, known = (source.tensors or {}).get("classifier.weight"), source.head_labels
    if head is None or not labels:
        return None
    rows = match_labels(known, labels)
    if rows is None:
        if head.shape[1] != len(labels):
            return None  # `load` reports it
        return (
            "config.json does not name the classifier's labels; its logits are taken in the order "
            f"{few(labels)}; if that is wrong, name them in id2label"
        )
    fresh = [label for label, row in zip(labels, rows) if row < 0]
    if len(fresh) == len(labels):
        return (
            f"the classifier is of other labels ({few(known)}); it starts fresh for {few(labels)}"
        )
    if fresh:
        return (
            f"the classifier knows {len(labels) - len(fresh)} of the {len(labels)} labels; it "
            f"starts fresh for {few(fresh)}"
        )
    if len(known) > len(labels):
        return f"the classifier keeps {len(labels)} of its {len(known)} labels: {few(labels)}"
    if (rows != np.arange(len(labels))).any():
        return f"the classifier's labels, {few(known)}, are put in the order {few(labels)}"
    return None


def few(labels: Sequence[str], most: int = 12) -> str:
    return ", ".join(labels[:most]) + (f" and {len(labels) - most} more" if labels[most:] else "")


def save_folder(
    network: nn.Layer,
    source: Source,
    folder: Path,
    labels: Sequence[str] = (),
    head_fields: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Write the network's weights as a folder of the source's family that `model.init` can read,
    and transformers, or PaddleNLP where the source is its: config.json, model.safetensors, and the
    tokenizer's files. head_fields: of the config.json besides."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {n: t.astype("float32").numpy() for n, t in network.network.state_dict().items()}
    for tied in (DECODER, "cls.predictions.decoder.bias"):
        state.pop(tied, None)
    loaded = Loaded(state, source.shape)
    fields, tensors = encoders.write(source.family, loaded, network.head, source.paddlenlp)
    # transformers refuses a file without `format`, and PaddleNLP one of PyTorch's
    layout = {"format": "np" if source.paddlenlp else "pt"}
    save_file(tensors, folder / "model.safetensors", metadata=layout)
    if labels and network.head != ANSWERS:  # its logits are of no labels
        fields["id2label"] = {str(number): label for number, label in enumerate(labels)}
        fields["label2id"] = {label: number for number, label in enumerate(labels)}
    fields.update(head_fields)
    if labels and network.pooling is not None:
        fields[pooling.OF_CLASSIFIER] = network.pooling
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n")
    tokenizers.save(source.tokenizer, folder)
    if network.pooling is not None:
        pooling.write(folder, network.pooling, source.shape["hidden_size"])


def _tied(name: str, tensors: Tensors) -> bool:
    partner = {
        "cls.predictions.decoder.bias": "cls.predictions.decoder_bias",
        "cls.predictions.decoder_bias": "cls.predictions.decoder.bias",
        DECODER: WORDS,
    }.get(name)
    return partner in tensors
