"""Golden texts: what a variant answered where it was made, in its manifest, to be asked again
where it is served."""

from __future__ import annotations

from typing import Callable, NamedTuple, TypedDict

import numpy as np

from fleetbert import bundle as bundles
from fleetbert.data.batching import SAFE_LENGTHS, round_up
from fleetbert.errors import UserError

KEY = "golden"  # in a variant's `extra`
LONGEST = 32  # tokens
# How far answers may part from those, of the largest golden logit (of 1, where all are smaller).
# Kernels for other processors round otherwise; in integers a rounding decides more.
FLOAT_SHARE, INTEGER_SHARE = 0.01, 0.1


# (input_ids, token_type_ids) int64 [texts, length] → logits float32 [texts, labels]
Run = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Record(TypedDict):
    """The same as a manifest has it."""

    ids: list[list[int]]
    logits: list[list[float]]
    bound: float


class Golden(NamedTuple):
    """ids: int32 [tokens] of each text; logits: float32 [texts, labels], if they are known; bound:
    the largest difference of a logit that is not another model's."""

    ids: list[np.ndarray]
    logits: np.ndarray | None
    bound: float


def record(run: Run, max_length: int, vocab_size: int, share: float) -> Record:
    """What `read` reads: the answers of `run` to a few texts, ready for JSON."""
    random = np.random.default_rng(0)
    longest = min(max_length, LONGEST)
    lengths = sorted({3, longest // 2 + 1, longest})
    ids = np.zeros((len(lengths), round_up(longest, SAFE_LENGTHS)), np.int64)
    for row, length in zip(ids, lengths):
        row[:length] = random.integers(1, vocab_size, length)
    logits = run(ids, np.zeros_like(ids))
    return {
        "ids": [row[:length].tolist() for row, length in zip(ids, lengths)],
        "logits": logits.tolist(),
        "bound": share * max(1.0, float(np.abs(logits).max())),
    }


def read(bundle: bundles.Bundle, variant: str) -> Golden | None:
    """Of a variant; None if it was made by a fleetbert that kept none. UserError if unreadable."""
    found = bundle.variant(variant).extra.get(KEY)
    if found is None:
        return None
    try:
        ids = [np.array(row, np.int32) for row in found["ids"]]
        logits, bound = np.array(found["logits"], np.float32), float(found["bound"])
        whole = logits.ndim == 2 and len(logits) == len(ids) and bool(np.isfinite(logits).all())
        whole &= all(row.ndim == 1 and 0 < row.size <= bundle.max_length for row in ids)
    except (KeyError, TypeError, ValueError):
        whole = False
    if not whole:
        raise UserError(
            f"{bundle.root / bundles.MANIFEST}: golden of variant {variant} is no list of texts "
            "and their logits; restore the file or export again"
        )
    return Golden(ids, logits, bound)
