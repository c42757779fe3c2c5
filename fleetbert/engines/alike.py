"""Whether two forms of a model are the same one: what to ask both, and how far answers may part.
And whether a text's answer is the same among others."""

from __future__ import annotations

from typing import Callable, Iterable

import numpy as np

from fleetbert.data.batching import SAFE_LENGTHS, round_up
from fleetbert.data.ragged import Texts
from fleetbert.engines.engine import Engine

# Of logits. Float32 kernels differ by some 1e-6; more than this is another model.
LARGEST_DIFFERENCE = 1e-3
SHAPES = ((1, 16), (3, 32), (5, 64), (1, 128))  # of batches to ask: texts, length


def random_batch(
    random: np.random.Generator, shape: tuple[int, int], vocab_size: int, pad_id: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """input_ids and token_type_ids int64 of that shape, as of pairs, some rows padded."""
    texts, length = shape
    input_ids = random.integers(1, vocab_size, shape)
    input_ids[input_ids == pad_id] = 0
    token_type_ids = np.zeros(shape, np.int64)
    for row in range(texts):
        used = length - row * length // (2 * texts)
        input_ids[row, used:] = pad_id
        token_type_ids[row, used // 2 : used] = 1
    return input_ids, token_type_ids


def random_batches(
    max_length: int, vocab_size: int, pad_id: int = 0
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Batches of SHAPES, and of the longest rows that the engine is ever asked."""
    longest = round_up(max_length, SAFE_LENGTHS)
    shapes = {(texts, min(length, longest)) for texts, length in SHAPES} | {(2, longest)}
    random = np.random.default_rng(0)
    return [random_batch(random, shape, vocab_size, pad_id) for shape in sorted(shapes)]


def difference(some: Iterable[np.ndarray], others: Iterable[np.ndarray]) -> float:
    """The largest between two engines' answers to the same batches; NaN where one answers that."""
    return float(np.max([np.abs(a - b).max() for a, b in zip(some, others)]))


def at_tokens(outputs: np.ndarray, real: np.ndarray) -> np.ndarray:
    """Outputs as an engine gives them: those of tokens, [texts, length, outputs], are 0 at padding.
    real: bool [texts, length]."""
    return outputs * real[..., None] if outputs.ndim == 3 else outputs


def alone_difference(
    engine: Engine, texts: Texts, scores: Callable[[np.ndarray], np.ndarray], batch: int = 32
) -> float:
    """The largest difference of a score between each text by itself and in a batch of `batch`
    texts as they come, of the largest score (of 1, where all are smaller); NaN where one is that.

    scores: makes them of `Engine.run`'s outputs.
    """
    numbers = np.arange(len(texts.lengths))
    among = texts.parts(np.array_split(numbers, max(1, len(numbers) // batch)))
    answers = [
        [row for _, part in parts for row in scores(engine.run(part))]
        for parts in (texts.parts(numbers[:, None]), among)
    ]
    largest = max(1.0, *(float(np.abs(row).max()) for row in answers[0]))
    return difference(*answers) / largest
