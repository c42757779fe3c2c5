"""The networks: PaddleNLP's BERT under a head. A task names its head (`tasks.Task.head`).

All take the arrays of a `fleetbert.data.batching.Batch`. Shapes: rows x length token arrays; a
packed row holds several texts, told apart by `segments`.
"""

from __future__ import annotations

import copy

import paddle
from paddle import nn

from fleetbert import tasks
from fleetbert.compat.paddlenlp import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
)
from fleetbert.core.registry import Registry
from fleetbert.models import activations, pooling
from fleetbert.models.encoders import POOLER

# Keeps the length of a vector from 0.
TINY = 1e-12
MOST_TEXTS = 1 << 16  # of a row
# Added to attention scores where a token must not be seen. Half holds it, and exp of it is 0.
MASKED_SCORE = -1e4


def block_diagonal_mask(segments: paddle.Tensor, dtype: paddle.dtype) -> paddle.Tensor:
    """Additive attention mask of packed rows: a token sees the tokens of its own text only.

    segments (rows, length): number of the text in its row from 1, 0 for padding, which sees
    padding: a token that sees nothing is NaN as soon as half makes all its scores -inf, and NaN
    times an attention weight of 0 is NaN in every text of the row.
    Returns (rows, 1, length, length).
    """
    seen = segments.unsqueeze(2) == segments.unsqueeze(1)  # (rows, length, length)
    return ((1.0 - seen.astype(dtype)) * MASKED_SCORE).unsqueeze(1)


def encode(
    bert: nn.Layer,
    input_ids: paddle.Tensor,
    token_type_ids: paddle.Tensor,
    position_ids: paddle.Tensor | None = None,
    segments: paddle.Tensor | None = None,
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Hidden states (rows, length, hidden) and pooled first tokens (rows, hidden)."""
    mask = None  # PaddleNLP's own: padding by pad_token_id, the same score
    if segments is not None:
        mask = block_diagonal_mask(segments, bert.pooler.dense.weight.dtype)
    return bert(input_ids, token_type_ids, position_ids, mask)


class Headed(nn.Layer):
    """BERT under a head. `network` has `bert` and the head's layers, under the names that files
    have; `head` is the name that it is registered by. unread: begin the names of weights that its
    answers do not depend on. width, pooling: of vectors, where it gives these."""

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
        self.network = BertForSequenceClassification(config)

    def forward(
        self,
        input_ids: paddle.Tensor,
        token_type_ids: paddle.Tensor,
        position_ids: paddle.Tensor | None = None,
        segments: paddle.Tensor | None = None,
        first: paddle.Tensor | None = None,
    ) -> paddle.Tensor:
        """Logits (texts, labels). `first` (texts): flat index of each text's [CLS]; without it
        every row is one text."""
        bert = self.network.bert
        hidden, pooled = encode(bert, input_ids, token_type_ids, position_ids, segments)
        if segments is not None:
            tokens = hidden.reshape([-1, hidden.shape[-1]])  # (rows * length, hidden)
            pooled = bert.pooler.activation(bert.pooler.dense(paddle.gather(tokens, first)))
        return self.network.classifier(self.network.dropout(pooled))


class TokenClassifier(Headed):
    """BERT with dropout and a linear layer on each token (Devlin et al. 2019, section 5.3)."""

    head = "tokens"
    unread = (POOLER,)

    def __init__(self, config: BertConfig):
        super().__init__()
        self.network = BertForSequenceClassification(config)  # its pooler is not used

    def forward(
        self,
        input_ids: paddle.Tensor,
        token_type_ids: paddle.Tensor,
        position_ids: paddle.Tensor | None = None,
        segments: paddle.Tensor | None = None,
    ) -> paddle.Tensor:
        """Logits (rows, length, labels)."""
        bert = self.network.bert
        hidden, _ = encode(bert, input_ids, token_type_ids, position_ids, segments)
        return self.network.classifier(self.network.dropout(hidden))


class Encoder(nn.Layer):
    """BERT alone, under the name that it has beside a head."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.config = config
        self.bert = BertModel(config)


class Embedder(Headed):
    """A vector of length 1 for each text: the mean over its tokens, or its [CLS], of the last
    layer, as sentence-transformers pools (Reimers and Gurevych 2019, section 3).

    `config.pooling` is mean or cls, the usual mean.
    """

    head = "embedding"
    unread = (POOLER,)

    def __init__(self, config: BertConfig):
        super().__init__()
        self.network = Encoder(config)
        self.width = config.hidden_size
        self.pooling = getattr(config, "pooling", pooling.DEFAULT)

    def forward(
        self,
        input_ids: paddle.Tensor,
        token_type_ids: paddle.Tensor,
        position_ids: paddle.Tensor | None = None,
        segments: paddle.Tensor | None = None,
        first: paddle.Tensor | None = None,
    ) -> paddle.Tensor:
        """Vectors (texts, hidden). `first`: see `TextClassifier`."""
        bert = self.network.bert
        dtype = bert.pooler.dense.weight.dtype
        if segments is None:  # as PaddleNLP's own, which the mean reads too
            padding = (input_ids == bert.pad_token_id).astype(dtype)
            mask = (padding * MASKED_SCORE).unsqueeze([1, 2])
        else:
            mask = block_diagonal_mask(segments, dtype)
        hidden, _ = bert(input_ids, token_type_ids, position_ids, mask)
        # A sum has the direction of the mean, and only that is left of it.
        if segments is not None:
            tokens = hidden.reshape([-1, hidden.shape[-1]])
            if self.pooling == "cls":
                pooled = paddle.gather(tokens, first)
            else:
                pooled = paddle.matmul(
                    tokens_of_texts(segments, first).astype(tokens.dtype), tokens
                )
        elif self.pooling == "cls":
            pooled = hidden[:, 0]
        else:  # exp is 1 where there is text, 0 where there is padding
            pooled = paddle.matmul(paddle.exp(mask).squeeze(1), hidden).squeeze(1)
        if pooled.dtype != paddle.float32:  # squares are out of half's range
            pooled = pooled.astype("float32")
        return pooled / (paddle.norm(pooled, p=2, axis=-1, keepdim=True) + TINY)


def tokens_of_texts(segments: paddle.Tensor, first: paddle.Tensor) -> paddle.Tensor:
    """Which tokens of packed rows are of which text: bool (texts, rows * length).

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
        self.network = BertForMaskedLM(config)

    def forward(
        self,
        input_ids: paddle.Tensor,
        token_type_ids: paddle.Tensor,
        position_ids: paddle.Tensor | None = None,
        segments: paddle.Tensor | None = None,
        positions: paddle.Tensor | None = None,
    ) -> paddle.Tensor:
        """Logits (masked words, vocabulary) at the flat `positions`; without them of all tokens."""
        hidden, _ = encode(self.network.bert, input_ids, token_type_ids, position_ids, segments)
        return self.network.cls.predictions(hidden, positions)


heads: Registry[type[Headed]] = Registry(
    "head",
    {head.head: head for head in (TextClassifier, TokenClassifier, MaskedLanguageModel, Embedder)},
)


def build(task: str, config: BertConfig) -> Headed:
    """The network for `task.name`, with fresh weights.

    Fields that PaddleNLP's has not: `config.kept_heads`, as many attention heads in each layer, of
    the width that they have in all `num_attention_heads`; `config.pooler_act`, the pooler's
    activation; `config.pooling`, see `Embedder`.
    """
    activation = activations.get(config.hidden_act)
    config = copy.copy(config)
    config.hidden_act = "gelu"  # PaddleNLP looks for a function of that name in Paddle
    network = heads[tasks.get(task).head](config)
    for layer in network.sublayers():
        if isinstance(layer, nn.LayerNorm):
            layer._epsilon = config.layer_norm_eps  # PaddleNLP sets it where it draws weights only
        if "activation" in vars(layer) and callable(layer.activation):
            layer.activation = activation
    network.network.bert.pooler.activation = Function(getattr(config, "pooler_act", "tanh"))
    kept = getattr(config, "kept_heads", config.num_attention_heads)
    if kept != config.num_attention_heads:
        for layer in network.network.bert.encoder.layers:
            _keep_heads(layer.self_attn, kept)
    return network


def scale_outputs(network: Headed, factor: float) -> None:
    """Multiply what a network with a linear layer at its end gives, by changing that layer."""
    with paddle.no_grad():
        for tensor in network.network.classifier.parameters():
            tensor.set_value(tensor * factor)


class Function(nn.Layer):
    """An activation as a layer."""

    def __init__(self, name: str):
        super().__init__()
        self._function = activations.get(name)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return self._function(x)


def _keep_heads(attention: nn.MultiHeadAttention, heads: int) -> None:
    width = heads * attention.head_dim
    attention.num_heads = heads
    for name in ("q_proj", "k_proj", "v_proj"):
        setattr(attention, name, nn.Linear(attention.embed_dim, width))
    attention.out_proj = nn.Linear(width, attention.embed_dim)
