"""What families compute otherwise than BERT, put into BERT's tensors, and taken out again.

tests/models/test_encoders.py compares each with what transformers computes.
"""

from __future__ import annotations

import numpy as np

from fleetbert.models.network import (
    POSITIONS,
    TASKS,
    TYPES,
    WORDS,
    Loaded,
)


def unchanged(loaded: Loaded) -> Loaded:
    return loaded


def fold_types(loaded: Loaded) -> Loaded:
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


def fold_one_type(loaded: Loaded) -> Loaded:
    return fold_types(loaded) if TYPES in loaded.tensors else loaded


def unfold_types(loaded: Loaded) -> Loaded:
    tensors, shape = loaded
    if not shape.get("one_type"):
        return loaded
    return Loaded({**tensors, TYPES: tensors[TYPES][:1]}, {**shape, "type_vocab_size": 1})


def fold_roberta(loaded: Loaded) -> Loaded:
    """Positions count from the padding id: the first token has the row after it."""
    tensors, shape = loaded
    positions = tensors[POSITIONS][shape["pad_token_id"] + 1 :]
    shape = {**shape, "max_position_embeddings": len(positions)}
    return fold_types(Loaded({**tensors, POSITIONS: positions}, shape))


def unfold_roberta(loaded: Loaded) -> Loaded:
    tensors, shape = unfold_types(loaded)
    positions = np.pad(tensors[POSITIONS], ((shape["pad_token_id"] + 1, 0), (0, 0)))
    shape = {**shape, "max_position_embeddings": len(positions)}
    return Loaded({**tensors, POSITIONS: positions}, shape)


def fold_ernie(loaded: Loaded) -> Loaded:
    """Every token is of the first task, as transformers and PaddleNLP take it without
    task_type_ids. It is written back as an ERNIE without tasks."""
    tensors = dict(loaded.tensors)
    if TASKS in tensors:
        tensors[TYPES] = tensors[TYPES] + tensors.pop(TASKS)[0]
    return fold_one_type(Loaded(tensors, loaded.shape))


def unfold_distilbert(loaded: Loaded) -> Loaded:
    """Its tokens have no types. Those of type 0 are all there are, so their row goes into each
    position's."""
    tensors, shape = dict(loaded.tensors), loaded.shape.copy()
    tensors[POSITIONS] = tensors[POSITIONS] + tensors.pop(TYPES)[0]
    return Loaded(tensors, shape)


def fold_albert(loaded: Loaded) -> Loaded:
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
