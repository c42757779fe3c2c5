"""Which models do not fold into the network, and why."""

from __future__ import annotations

import json

from fleetbert.models.encoders import Family, named
from fleetbert.models.network import KINDS, Fields

# Keys of a config.json, transformers' or PaddleNLP's, that change what an encoder computes and are
# no fields of Shape: what the network computes, which null and a file without the key mean too, and
# why another value is refused. The others change nothing here: use_cache, chunk_size_feed_forward,
# what is returned; sinusoidal_pos_embds stands in DistilBERT's weights, and summary_* is of a head
# of ELECTRA's that nothing here has.
ONLY: dict[str, tuple[object, str]] = {
    "position_embedding_type": ("absolute", "relative position embeddings are not supported"),
    "is_decoder": (False, "tokens that see only those before them are not supported"),
    "add_cross_attention": (False, "attention to another network's tokens is not supported"),
    "is_encoder_decoder": (False, "networks with a decoder are not supported"),
    "pool_act": ("tanh", "a pooler without tanh is not supported"),  # PaddleNLP's
    "task_id": (0, "only task 0 is supported"),  # of PaddleNLP's ERNIE
    "pruned_heads": ({}, "layers that lack heads are not supported; take the model unpruned"),
    "quantization_config": (None, "take the model as it was before it was quantized"),
}

# Fields that no network is without, and the values that some may have; Paddle's LayerNorm takes no
# larger epsilon.
NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads")
BOUNDS: dict[str, tuple[float, float]] = {
    **dict.fromkeys((*NEEDED, "intermediate_size", "type_vocab_size"), (1, 1 << 20)),
    **dict.fromkeys(("vocab_size", "max_position_embeddings"), (1, 1 << 24)),
    "num_hidden_layers": (1, 1 << 10),
    "hidden_dropout_prob": (0, 1),
    "attention_probs_dropout_prob": (0, 1),
    "layer_norm_eps": (0, 1e-3),
}

# Why others do not fold into the network.
REFUSED: dict[str, str] = {
    "big_bird": "its attention skips most tokens",
    "convbert": "half of its attention is a convolution",
    "deberta": "its attention scores depend on relative positions",
    "deberta-v2": "its attention scores depend on relative positions",
    "ernie_m": "PaddleNLP writes it in a layout of its own",
    "funnel": "its layers get shorter",
    "longformer": "its attention skips most tokens",
    "mobilebert": "its layers have bottlenecks",
    "modernbert": "its positions are rotations, and its norms stand before its layers",
    "mpnet": "its attention scores depend on relative positions",
    "nomic_bert": "its positions are rotations",
    "roformer": "its positions are rotations",
    "xlnet": "its attention scores depend on relative positions",
}


def refusal(family: Family, fields: Fields) -> str:
    """Why a config.json is of no network that folds into ours; "" if it does."""
    for key, (only, reason) in ONLY.items():
        if fields.get(key) not in (None, only):
            return f"config.json says {key}: {_short(fields[key])}; {reason}"
    keys = named(family, fields)
    for field, key in keys.items():
        value, kind = fields[key], KINDS[field]
        if value is None and field == "pad_token_id" and "pad_token_id" not in family.defaults:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, kind) if kind is float else kind):
            expected = "a text" if kind is str else "a number"
            return (
                f"config.json says {key}: {_short(value)}; it has to be {expected}, the model's own"
            )
        least, largest = BOUNDS.get(field, (value, value))
        if not least <= value <= largest:
            return f"config.json says {key}: {value}; it has to be from {least} to {largest}"
    lacking = [
        family.keys.get(field, field)
        for field in NEEDED
        if field not in keys and field not in family.defaults
    ]
    because = f"config.json has no {', no '.join(lacking)}; copy it from where the weights are from"
    return family.cannot(fields) or (because if lacking else "")


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
