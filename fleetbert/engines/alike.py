"""Whether two forms of a model are the same one: what to ask both, and how far answers may part."""

from __future__ import annotations

import numpy as np

# Of logits. Float32 kernels differ by some 1e-6; more than this is another model.
LARGEST_DIFFERENCE = 1e-3


def random_batch(
    random: np.random.Generator, shape: tuple[int, int], vocab_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """input_ids and token_type_ids int64 of that shape, as of pairs, some rows padded with 0."""
    texts, length = shape
    input_ids = random.integers(1, vocab_size, shape)
    token_type_ids = np.zeros(shape, np.int64)
    for row in range(texts):
        used = length - row * length // (2 * texts)
        input_ids[row, used:] = 0
        token_type_ids[row, used // 2 : used] = 1
    return input_ids, token_type_ids
