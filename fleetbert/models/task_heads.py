"""The networks: BERT under a head. A task names its head (`tasks.Shape.head`).

All take the arrays of a `fleetbert.data.batching.Batch`. Shapes: rows x length token arrays; a
packed row holds several texts, told apart by `segments`.
"""

from __future__ import annotations

from typing import Callable

import paddle
from paddle import nn

from fleetbert import tasks
from fleetbert.core.registry import Registry
from fleetbert.models.bert import (
    MASKED_SCORE,
    BertAlone,
    BertClassifier,
    BertConfig,
    BertMaskedWords,
)
from fleetbert.models.network import ANSWERS, POOLER, TOKENS
from fleetbert.models.pooling import DEFAULT
from fleetbert.tasks.vector_heads import Linear

# Keeps the length of a vector from 0.
TINY = 1e-12
MOST_TEXTS = 1 << 16  # of a row


def block_diagonal_mask(segments: paddle.Tensor, dtype: paddle.dtype) -> paddle.Tensor:
    """Additive attention mask of packed rows: a token sees the tokens of its own text only.

    segments (rows, length): number of the text in its row from 1, 0 for padding, which sees
    padding: a token that sees nothing is NaN as soon as half makes all its scores -inf, and NaN
    times an attention weight of 0 is NaN in every text of the row.
    Returns (rows, 1, length, length).
    """
    seen = segments.unsqueeze(2) == segments.unsqueeze(1)  # (rows, length, length)
    return ((1.0 - seen.astype(dtype)) * MASKED_SCORE).unsqueeze(1)


def attention_mask(
    bert: nn.Layer, input_ids: paddle.Tensor, segments: paddle.Tensor | None
) -> paddle.Tensor:
    """What is added to the scores: of packed rows, or of rows that hold one text each."""
    if segments is None:
        return bert.padding_mask(input_ids)
    return block_diagonal_mask(segments, bert.pooler.dense.weight.dtype)


def of_windows(
    outputs: paddle.Tensor, windows: paddle.Tensor | None, shares: paddle.Tensor | None
) -> paddle.Tensor:
    """Outputs (texts, outputs) of the outputs of their windows; these themselves without
    `windows`. See `tasks.collect.pooled`."""
    if windows is None:
        return outputs
    rows = paddle.gather(outputs, windows.flatten())
    rows = rows.reshape([*windows.shape, outputs.shape[-1]])  # (texts, most, outputs)
    if shares is None:
        return rows.max(1)
    return (rows * shares.unsqueeze(-1).astype(rows.dtype)).sum(1)


def first_tokens(hidden: paddle.Tensor, first: paddle.Tensor | None) -> paddle.Tensor:
    """Each text's first token (texts, hidden). first: see `TextClassifier`."""
    if first is None:
        return hidden[:, 0]
    return paddle.gather(hidden.reshape([-1, hidden.shape[-1]]), first)


def encode(
    bert: nn.Layer,
    input_ids: paddle.Tensor,
    token_type_ids: paddle.Tensor,
    position_ids: paddle.Tensor | None = None,
    segments: paddle.Tensor | None = None,
) -> paddle.Tensor:
    """Hidden states (rows, length, hidden)."""
    return bert(input_ids, token_type_ids, position_ids, attention_mask(bert, input_ids, segments))


class Headed(nn.Layer):
    """BERT under a head. `network` has `bert` and the head's layers, under the names that files
    have; `head` is the name that it is registered by. unread: begin the names of weights that its
    answers do not depend on. width: of vectors, where it gives these; pooling: how it makes one
    of a text's tokens, where it does."""

    head: str
    width: int | None = None
    pooling: str | None = None
    unread: tuple[str, ...] = ()
    network: nn.Layer


class TextClassifier(Headed):
    """BERT with dropout and a linear layer on the pooled [CLS] (Devlin et al. 2019, section 4)."""

    head = "classifier"

    def __init__(self, config: BertConfig):
        super().__init__()
        self.network = BertClassifier(config)

    def forward(
        self,
        input_ids: paddle.Tensor,
        token_type_ids: paddle.Tensor,
        position_ids: paddle.Tensor | None = None,
        segments: paddle.Tensor | None = None,
        first: paddle.Tensor | None = None,
        windows: paddle.Tensor | None = None,
        shares: paddle.Tensor | None = None,
    ) -> paddle.Tensor:
        """Logits (texts, labels). `first` (texts): flat index of each text's [CLS]; without it
        every row is one text. `windows`, `shares`: see `of_windows`."""
        bert = self.network.bert
        hidden = encode(bert, input_ids, token_type_ids, position_ids, segments)
        pooled = bert.pooler(first_tokens(hidden, first))
        logits = self.network.classifier(self.network.dropout(pooled))
        return of_windows(logits, windows, shares)


class TokenClassifier(Headed):
    """BERT with dropout and a linear layer on each token (Devlin et al. 2019, section 5.3)."""

    head = TOKENS
    unread = (POOLER,)

    def __init__(self, config: BertConfig):
        super().__init__()
        self.network = BertClassifier(config)  # its pooler is not used

    def forward(
        self,
        input_ids: paddle.Tensor,
        token_type_ids: paddle.Tensor,
        position_ids: paddle.Tensor | None = None,
        segments: paddle.Tensor | None = None,
    ) -> paddle.Tensor:
        """Logits (rows, length, labels)."""
        bert = self.network.bert
        hidden = encode(bert, input_ids, token_type_ids, position_ids, segments)
        return self.network.classifier(self.network.dropout(hidden))


class AnswerFinder(TokenClassifier):
    """The same without that dropout, with a logit of begin and one of end (Devlin et al. 2019,
    section 4.2)."""

    head = ANSWERS

    def __init__(self, config: BertConfig):
        super().__init__(config)
        self.network.dropout = nn.Identity()


class Embedder(Headed):
    """A vector of length 1 for each text: the mean over its tokens, or its [CLS], of the last
    layer, as sentence-transformers pools (Reimers and Gurevych 2019, section 3).

    `config.pooling` is mean or cls, the usual mean.
    """

    head = "embedding"
    unread = (POOLER,)

    def __init__(self, config: BertConfig, network: Callable[[BertConfig], BertAlone] = BertAlone):
        super().__init__()
        self.network = network(config)
        self.width = config.hidden_size
        self.pooling = config.pooling or DEFAULT

    def forward(
        self,
        input_ids: paddle.Tensor,
        token_type_ids: paddle.Tensor,
        position_ids: paddle.Tensor | None = None,
        segments: paddle.Tensor | None = None,
        first: paddle.Tensor | None = None,
        windows: paddle.Tensor | None = None,
        shares: paddle.Tensor | None = None,
    ) -> paddle.Tensor:
        """Vectors (texts, hidden). Other arguments: see `TextClassifier`."""
        vectors = self.vectors(input_ids, token_type_ids, position_ids, segments, first)
        return vectors if windows is None else _normalized(of_windows(vectors, windows, shares))

    def vectors(
        self,
        input_ids: paddle.Tensor,
        token_type_ids: paddle.Tensor,
        position_ids: paddle.Tensor | None = None,
        segments: paddle.Tensor | None = None,
        first: paddle.Tensor | None = None,
    ) -> paddle.Tensor:
        """Vectors of rows, also where a layer follows."""
        bert = self.network.bert
        mask = attention_mask(bert, input_ids, segments)  # the mean reads it too
        hidden = bert(input_ids, token_type_ids, position_ids, mask)
        # A sum has the direction of the mean, and only that is left of it.
        if self.pooling == "cls":
            pooled = first_tokens(hidden, first)
        elif segments is not None:
            tokens = hidden.reshape([-1, hidden.shape[-1]])  # (rows * length, hidden)
            pooled = paddle.matmul(tokens_of_texts(segments, first).astype(tokens.dtype), tokens)
        else:  # exp is 1 where there is text, 0 where there is padding
            pooled = paddle.matmul(paddle.exp(mask).squeeze(1), hidden).squeeze(1)
        if pooled.dtype != paddle.float32:  # squares are out of half's range
            pooled = pooled.astype("float32")
        return _normalized(pooled)


def _normalized(vectors: paddle.Tensor) -> paddle.Tensor:
    return vectors / (paddle.norm(vectors, p=2, axis=-1, keepdim=True) + TINY)


class VectorClassifier(Embedder):
    """A linear layer on the vector that `Embedder` gives, for labels that are learned from the
    vectors of a few texts, or of their names (`tasks.vector_heads`)."""

    head = "vector_classifier"

    def __init__(self, config: BertConfig):
        super().__init__(config, BertClassifier)
        self.width = None

    def forward(
        self,
        input_ids: paddle.Tensor,
        token_type_ids: paddle.Tensor,
        position_ids: paddle.Tensor | None = None,
        segments: paddle.Tensor | None = None,
        first: paddle.Tensor | None = None,
        windows: paddle.Tensor | None = None,
        shares: paddle.Tensor | None = None,
    ) -> paddle.Tensor:
        """Logits (texts, labels). Other arguments: see `TextClassifier`."""
        vectors = self.vectors(input_ids, token_type_ids, position_ids, segments, first)
        return of_windows(self.network.classifier(vectors), windows, shares)

    def set_head(self, head: Linear) -> None:
        """Let the linear layer be `head`."""
        self.network.classifier.weight.set_value(head.weight)
        self.network.classifier.bias.set_value(head.bias)


def tokens_of_texts(segments: paddle.Tensor, first: paddle.Tensor) -> paddle.Tensor:
    """The tokens of each text in packed rows: bool (texts, rows * length).

    segments (rows, length) as in `block_diagonal_mask`; first (texts): flat indices of the texts'
    first tokens.
    """
    rows = paddle.cumsum(paddle.ones_like(segments), axis=0)  # without sizes: it may be traced
    texts = (rows * MOST_TEXTS + segments).flatten()  # one number for each text of the batch
    return paddle.gather(texts, first).unsqueeze(1) == texts.unsqueeze(0)


class MaskedLanguageModel(Headed):
    """BERT with the masked-word head, its output tied to the word embeddings."""

    head = "masked_words"
    unread = (POOLER,)

    def __init__(self, config: BertConfig):
        super().__init__()
        self.network = BertMaskedWords(config)

    def forward(
        self,
        input_ids: paddle.Tensor,
        token_type_ids: paddle.Tensor,
        position_ids: paddle.Tensor | None = None,
        segments: paddle.Tensor | None = None,
        positions: paddle.Tensor | None = None,
    ) -> paddle.Tensor:
        """Logits (masked words, vocabulary) at the flat `positions`; without them of all tokens."""
        hidden = encode(self.network.bert, input_ids, token_type_ids, position_ids, segments)
        return self.network.cls.predictions(hidden, positions)


heads: Registry[type[Headed]] = Registry(
    "head",
    {
        head.head: head
        for head in (
            TextClassifier,
            VectorClassifier,
            TokenClassifier,
            AnswerFinder,
            MaskedLanguageModel,
            Embedder,
        )
    },
)


def build(task: str, config: BertConfig) -> Headed:
    """The network for `task.name`, with fresh weights. A classifier whose config has a pooling
    reads vectors."""
    head = tasks.get(task).shape.head
    return heads[f"vector_{head}" if config.pooling and head == "classifier" else head](config)


def scale_outputs(network: Headed, factor: float) -> None:
    """Multiply what a network with a linear layer at its end gives, by changing that layer."""
    with paddle.no_grad():
        for tensor in network.network.classifier.parameters():
            tensor.set_value(tensor * factor)
