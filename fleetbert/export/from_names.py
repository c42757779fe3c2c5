"""Labels' names, and texts without labels → a classifier that no text has taught."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Mapping, NamedTuple, Sequence

import numpy as np

from fleetbert import bundle as bundles
from fleetbert import config, tasks
from fleetbert.core import files
from fleetbert.core.errors import UserError
from fleetbert.data import tokenizers
from fleetbert.data.tokenizers import Tokenizer
from fleetbert.export.program import export_bundle
from fleetbert.models import sources, task_heads, vectors, weights
from fleetbert.models.network import ENCODER
from fleetbert.tasks import vector_heads

LONGEST = 128  # tokens


class Classifier(NamedTuple):
    """A network for these labels, which the source's tokenizer gives tokens."""

    network: task_heads.VectorClassifier
    source: sources.Source
    tokenizer: Tokenizer
    labels: list[str]
    max_length: int

    def vectors(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [texts, hidden], each of length 1."""
        encodings = self.tokenizer.encode(list(texts), None, self.max_length)
        return vectors.of(self.network, encodings, self.max_length, self.tokenizer.pad_id)

    def write(self, path: Path) -> bundles.Bundle:
        """Export it to a bundle at `path`."""
        with files.writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            return export_bundle(
                path,
                self.network,
                task=tasks.CLASSIFICATION.name,
                labels=self.labels,
                max_length=self.max_length,
                tokenizer=self.source.tokenizer,
                made_from=self.source.name,
            )


def classify(
    model: config.Model, labels: Mapping[str, Sequence[str]], texts: Sequence[str]
) -> tuple[Classifier, np.ndarray]:
    """A classifier of these labels, each with texts that describe it, adapted to `texts`; and their
    logits, float32 [texts, labels]."""
    if model.init == "random":
        raise UserError("init: random weights know no names of labels; name an encoder")
    source = sources.open_source(model).with_pooling(None, "init")
    tokenizer = tokenizers.open(source.tokenizer)
    shape = weights.bert_config(source, len(labels), tokenizer.vocab_size, tokenizer.pad_id)
    network = task_heads.build(
        tasks.CLASSIFICATION.name, dataclasses.replace(shape, initializer_range=0.0)
    )
    assert isinstance(network, task_heads.VectorClassifier)
    tensors = source.tensors or {}
    encoder = {n: array for n, array in tensors.items() if n.startswith(ENCODER)}
    weights.load(network, source._replace(tensors=encoder))
    network.eval()
    max_length = min(LONGEST, source.shape.get("max_position_embeddings", LONGEST))
    classifier = Classifier(network, source, tokenizer, list(labels), max_length)
    described = np.stack([classifier.vectors(list(of)).mean(0) for of in labels.values()])
    of_texts = classifier.vectors(texts)
    head = vector_heads.of_names(vector_heads.unit(described), of_texts)
    network.set_head(head)
    return classifier, head.logits(of_texts)
