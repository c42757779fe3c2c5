"""The shape of the one network that everything here runs, and the names of its tensors.

It is PaddleNLP's BertModel. Under its names a Linear weight is (in, out).
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, TypedDict, get_type_hints

import numpy as np

Tensors = Dict[str, np.ndarray]
Fields = Dict[str, Any]  # of a config.json


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
LAYERS = "bert.encoder.layers."
POOLER = "bert.pooler."
TOKENS, ANSWERS = "tokens", "answers"  # the heads that have none, see `models.task_heads`
CLASSIFIER, QA_OUTPUTS = "classifier.", "qa_outputs."  # the latter of transformers' files
HEADS = (POOLER, CLASSIFIER, "cls.", QA_OUTPUTS)


class Loaded(NamedTuple):
    """Tensors under the network's names, and their shape."""

    tensors: Tensors
    shape: Shape
