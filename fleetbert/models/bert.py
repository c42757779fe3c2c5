"""BERT (Devlin et al. 2019, section 3), of `models.layers`, under the names that PaddleNLP's files
have: a checkpoint of either opens in the other.

The pooler and the heads stand beside it as `task_heads` uses them. Shapes: rows x length token
arrays of a batch; hidden states (rows, length, hidden).
"""

from __future__ import annotations

from dataclasses import dataclass

import paddle
import paddle.nn.functional as F
from paddle import nn

from fleetbert.models import activations, layers
from fleetbert.models.layers import Dropout, Embedding, LayerNorm, Linear

# Added to attention scores where a token must not be seen. Half holds it, and exp of it is 0.
MASKED_SCORE = -1e4


@dataclass
class BertConfig:
    """What shapes the network, by the names of config.json; `network.Shape` says what each field
    is. num_labels: outputs of a classifier. initializer_range: 0: weights are not drawn."""

    vocab_size: int = 30522
    hidden_size: int = 768
    embedding_size: int | None = None  # None: hidden_size
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = activations.DEFAULT
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 16
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int = 0
    num_labels: int = 2
    kept_heads: int | None = None  # of each layer, as wide as they are with all; None: all
    pooler_act: str = "tanh"
    predictions_act: str | None = None  # of the head for words; None: hidden_act
    one_type: bool = False
    pooling: str | None = None  # of vectors; a classifier reads vectors where it has one


class Embeddings(nn.Layer):
    """Sums of the embeddings of words, positions and types, normalized."""

    def __init__(self, config: BertConfig):
        super().__init__()
        width = config.embedding_size or config.hidden_size
        self.word_embeddings = Embedding(config.vocab_size, width)
        self.position_embeddings = Embedding(config.max_position_embeddings, width)
        self.token_type_embeddings = Embedding(config.type_vocab_size, width)
        self.layer_norm = LayerNorm(width, epsilon=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        input_ids: paddle.Tensor,
        token_type_ids: paddle.Tensor,
        position_ids: paddle.Tensor | None,
    ) -> paddle.Tensor:
        if position_ids is None:  # without sizes, which a traced program must not hold
            ones = paddle.ones_like(input_ids, dtype="int64")
            position_ids = paddle.cumsum(ones, axis=-1) - ones
            position_ids.stop_gradient = True
        words = self.word_embeddings(input_ids)
        positions = self.position_embeddings(position_ids)
        types = self.token_type_embeddings(token_type_ids)
        return self.dropout(self.layer_norm(words + positions + types))


class Pooler(nn.Layer):
    """A linear layer and an activation on each text's first token."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.activation = activations.get(config.pooler_act)

    def forward(self, first: paddle.Tensor) -> paddle.Tensor:
        """first, and what it gives: (texts, hidden)."""
        return self.activation(self.dense(first))


class Attention(nn.Layer):
    """Multi-head self-attention (Vaswani et al. 2017)."""

    def __init__(self, config: BertConfig):
        super().__init__()
        hidden, self.num_heads = config.hidden_size, config.kept_heads or config.num_attention_heads
        self.head_dim = hidden // config.num_attention_heads
        width = self.num_heads * self.head_dim
        self.q_proj, self.k_proj, self.v_proj = (Linear(hidden, width) for _ in range(3))
        self.out_proj = Linear(width, hidden)
        self.dropout = Dropout(config.attention_probs_dropout_prob)

    def forward(self, hidden: paddle.Tensor, mask: paddle.Tensor | None = None) -> paddle.Tensor:
        query = self.heads(self.q_proj(hidden))
        key, value = self.k_proj(hidden), self.v_proj(hidden)  # Paddle's order in a program
        key, value = self.heads(key), self.heads(value)
        scores = paddle.matmul(query * self.head_dim**-0.5, key, transpose_y=True)
        if mask is not None:
            if mask.dtype != scores.dtype:  # AMP's products are in half
                mask = mask.astype(scores.dtype)
            scores = scores + mask
        weights = self.dropout(F.softmax(scores))  # (rows, heads, length, length)
        mixed = paddle.matmul(weights, value).transpose([0, 2, 1, 3])
        return self.out_proj(mixed.reshape([0, 0, self.num_heads * self.head_dim]))

    def heads(self, x: paddle.Tensor) -> paddle.Tensor:
        """(rows, length, width) → (rows, heads, length, head_dim)."""
        return x.reshape([0, 0, self.num_heads, self.head_dim]).transpose([0, 2, 1, 3])


class EncoderLayer(nn.Layer):
    """Attention and feed-forward, each with dropout, residual and LayerNorm.

    recomputes: see `layers.recomputed`.
    """

    recomputes = False

    def __init__(self, config: BertConfig):
        super().__init__()
        hidden, epsilon = config.hidden_size, config.layer_norm_eps
        self.self_attn = Attention(config)
        self.linear1 = Linear(hidden, config.intermediate_size)
        self.linear2 = Linear(config.intermediate_size, hidden)
        self.norm1, self.norm2 = (LayerNorm(hidden, epsilon=epsilon) for _ in range(2))
        self.dropout1, self.dropout2 = (Dropout(config.hidden_dropout_prob) for _ in range(2))
        self.activation = activations.get(config.hidden_act)

    def forward(self, hidden: paddle.Tensor, mask: paddle.Tensor | None = None) -> paddle.Tensor:
        if self.recomputes and self.training:
            return layers.recomputed(self, hidden, mask)
        return layers.encoder_layer(self, hidden, mask)

    def of_parts(self, hidden: paddle.Tensor, mask: paddle.Tensor | None) -> paddle.Tensor:
        hidden = self.norm1(hidden + self.dropout1(self.self_attn(hidden, mask)))
        inner = self.activation(self.linear1(hidden))
        return self.norm2(hidden + self.dropout2(self.linear2(inner)))


class Encoder(nn.Layer):
    """The layers, one after the other."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.layers = nn.LayerList([EncoderLayer(config) for _ in range(config.num_hidden_layers)])

    def forward(self, hidden: paddle.Tensor, mask: paddle.Tensor) -> paddle.Tensor:
        for layer in self.layers:
            hidden = layer(hidden, mask)
        return hidden


class Bert(nn.Layer):
    """Embeddings and encoder, and a pooler for whoever calls it. Embeddings of another width than
    the layers have are projected (Lan et al. 2020, section 3.1)."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.config = config
        self.pad_token_id = config.pad_token_id
        self.embeddings = Embeddings(config)
        self.project = None
        if config.embedding_size is not None:
            self.project = Linear(config.embedding_size, config.hidden_size)
        self.encoder = Encoder(config)
        self.pooler = Pooler(config)
        draw_weights(self, config.initializer_range)

    def padding_mask(self, input_ids: paddle.Tensor) -> paddle.Tensor:
        """The mask of rows that hold one text each, (rows, 1, 1, length)."""
        padding = (input_ids == self.pad_token_id).astype(self.pooler.dense.weight.dtype)
        return paddle.unsqueeze(padding * MASKED_SCORE, axis=[1, 2])

    def forward(
        self,
        input_ids: paddle.Tensor,
        token_type_ids: paddle.Tensor,
        position_ids: paddle.Tensor | None = None,
        mask: paddle.Tensor | None = None,
    ) -> paddle.Tensor:
        """Hidden states of the last layer. mask: added to the scores, (rows, 1, length or 1,
        length); None: padding is not seen."""
        if mask is None:
            mask = self.padding_mask(input_ids)
        hidden = self.embeddings(input_ids, token_type_ids, position_ids)
        return self.encoder(hidden if self.project is None else self.project(hidden), mask)


class BertAlone(nn.Layer):
    """The encoder under the name that it has beside a head."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.config = config
        self.bert = Bert(config)


class BertClassifier(BertAlone):
    """The encoder, and dropout and a linear layer for whoever calls it."""

    def __init__(self, config: BertConfig):
        super().__init__(config)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.classifier = Linear(config.hidden_size, config.num_labels)
        draw_weights(self.classifier, config.initializer_range)


class BertMaskedWords(BertAlone):
    """The encoder, and the head that tells hidden words (section 3.1)."""

    def __init__(self, config: BertConfig):
        super().__init__(config)
        self.cls = nn.Layer()
        self.cls.predictions = MaskedWordsHead(config, self.bert.embeddings.word_embeddings.weight)


class MaskedWordsHead(nn.Layer):
    """A layer as wide as the words' embeddings, then the words' embeddings, turned, and a bias."""

    def __init__(self, config: BertConfig, words: paddle.Tensor):
        super().__init__()
        width = config.embedding_size or config.hidden_size
        self.transform = Linear(config.hidden_size, width)
        self.activation = activations.get(config.predictions_act or config.hidden_act)
        self.layer_norm = LayerNorm(width, epsilon=config.layer_norm_eps)
        self.decoder = nn.Layer()
        self.decoder.weight = words
        self.decoder.bias = self.create_parameter([config.vocab_size], is_bias=True)
        self.decoder_bias = self.decoder.bias  # files have it by either name
        draw_weights(self.transform, config.initializer_range)

    def forward(
        self, hidden: paddle.Tensor, positions: paddle.Tensor | None = None
    ) -> paddle.Tensor:
        """Logits (masked words, vocabulary) at the flat `positions`; without them (rows, length,
        vocabulary)."""
        if positions is not None:
            hidden = paddle.gather(hidden.reshape([-1, hidden.shape[-1]]), positions)
        hidden = self.layer_norm(self.activation(self.transform(hidden)))
        return paddle.matmul(hidden, self.decoder.weight, transpose_y=True) + self.decoder.bias


def draw_weights(network: nn.Layer, deviation: float) -> None:
    """Fresh matrices and embeddings, of a normal distribution around 0 (as BERT's own code).
    Nothing in a static graph, whose weights have no values yet, nor where deviation is 0."""
    if not deviation or not paddle.in_dynamic_mode():
        return
    for layer in network.sublayers(include_self=True):
        if isinstance(layer, (nn.Linear, nn.Embedding)):
            shape = layer.weight.shape
            layer.weight.set_value(paddle.normal(mean=0.0, std=deviation, shape=shape))
