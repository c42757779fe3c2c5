"""The vectors of texts, by a network that is not exported yet."""

from __future__ import annotations

import numpy as np
import paddle

from fleetbert.data import batching
from fleetbert.data.tokenizers import Encodings
from fleetbert.models.task_heads import Embedder
from fleetbert.tasks import collect

BATCH_TOKENS = 2048


def of(network: Embedder, encodings: Encodings, max_length: int, pad_id: int) -> np.ndarray:
    """float32 [texts, hidden], each of length 1. The network is in evaluation mode."""
    lengths = encodings.lengths
    room = np.zeros((len(lengths), network.network.config.hidden_size), np.float32)
    with paddle.no_grad():
        for part in batching.plan_inference(lengths, BATCH_TOKENS, range(1, max_length + 1)):
            batch = batching.collate(
                encodings, part, packed=False, max_length=max_length, pad_id=pad_id
            )
            inputs = collect.network_inputs(batch)
            tensors = {name: paddle.to_tensor(array) for name, array in inputs.items()}
            room[part] = network.vectors(**tensors).astype("float32").numpy()
    return room
