"""A BERT so small that a test can make one."""

from __future__ import annotations

WORDS = [f"word{number}" for number in range(150)] + [f"字{number}" for number in range(40)]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
LABELS = ["bad", "so so", "好"]


def make_network(labels: int = len(LABELS), positions: int = 512, seed: int = 1):
    """A two-layer BERT whose random weights are large enough that texts get different answers."""
    import paddle
    from paddlenlp.transformers import BertConfig, BertForSequenceClassification

    class Network(paddle.nn.Layer):
        def __init__(self, bert):
            super().__init__()
            self.bert = bert

        def forward(self, input_ids, token_type_ids):
            return self.bert(input_ids, token_type_ids=token_type_ids)

    paddle.seed(seed)
    config = BertConfig(
        vocab_size=len(VOCAB),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=positions,
        initializer_range=0.3,
        num_labels=labels,
    )
    return Network(BertForSequenceClassification(config))
