"""Golden texts: what a variant answered where it was made, in its manifest, to be asked again
where it is served."""

from __future__ import annotations

from typing import Callable, NamedTuple

import numpy as np

from fleetbert import bundle as bundles
from fleetbert.core.device import CPU, Device
from fleetbert.data.batching import SAFE_LENGTHS, round_up

LONGEST = 32  # tokens
# How far answers may part from those, of the largest golden logit (of 1, where all are smaller).
# Kernels for other processors round otherwise; in integers a rounding decides more.
FLOAT_SHARE, INTEGER_SHARE = 0.01, 0.1
# The same of a GPU, by the precision of products there (float32's have 10 bits as TF32), and of a
# text alone and among others, for which kernels may differ. From the bits of each type; no GPU has
# shown them.
GPU_SHARES = {"float32": 0.01, "float16": 0.02, "bfloat16": 0.1, "int8": 0.1}
ALONE_SHARE = 0.01  # on CPUs; int8 with scales of a whole batch is above it

# (input_ids, token_type_ids) int64 [texts, length] → logits float32 [texts, labels]
Run = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Golden(NamedTuple):
    """ids: int32 [tokens] of each text; logits: float32 [texts, labels] (of networks that answer
    each token, [tokens, labels] of all texts), if they are known; bound:
    the largest difference of a logit that is not another model's."""

    ids: list[np.ndarray]
    logits: np.ndarray | None
    bound: float


def record(
    run: Run, max_length: int, vocab_size: int, share: float, pad_id: int = 0
) -> bundles.Golden:
    """The answers of `run` to a few texts, for the manifest."""
    random = np.random.default_rng(0)
    longest = min(max_length, LONGEST)
    lengths = sorted({3, longest // 2 + 1, longest})
    ids = np.full((len(lengths), round_up(longest, SAFE_LENGTHS)), pad_id, np.int64)
    for row, length in zip(ids, lengths):
        drawn = random.integers(1, vocab_size, length)
        row[:length] = np.where(drawn == pad_id, 0, drawn)
    logits = run(ids, np.zeros_like(ids))
    if logits.ndim == 3:
        logits = np.concatenate([row[:length] for row, length in zip(logits, lengths)])
    return bundles.Golden(
        ids=[row[:length].tolist() for row, length in zip(ids, lengths)],
        logits=logits.tolist(),
        bound=share * max(1.0, float(np.abs(logits).max())),
    )


def read(bundle: bundles.Bundle, variant: str, device: Device = CPU) -> Golden | None:
    """The golden texts of a variant, with the bound that holds on the device; None if an older
    fleetbert made it, without any."""
    kept = bundle.variant(variant).golden
    if kept is None:
        return None
    ids = [np.array(row, np.int32) for row in kept.ids]
    logits = np.array(kept.logits, np.float32)
    if device.card is None:
        return Golden(ids, logits, kept.bound)
    share = GPU_SHARES[device.precision]
    return Golden(ids, logits, max(kept.bound, share * max(1.0, float(np.abs(logits).max()))))


def alone_share(device: Device) -> float:
    """How far a text's answer alone may be from that among others, of the largest logit (of 1,
    where all are smaller)."""
    return ALONE_SHARE if device.card is None else GPU_SHARES[device.precision]
