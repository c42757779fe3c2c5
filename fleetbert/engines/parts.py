"""A batch answered in parts of like length, and parts of many batches at once.

Where lengths differ much, a call for the short texts and one for the long ones cost less than
having them share long rows. Parts of several batches are answered side by side (`engines.streams`).
"""

from __future__ import annotations

from collections import deque
from typing import Callable, Iterable, Iterator, NamedTuple

import numpy as np

from fleetbert.compat import paddle_inference
from fleetbert.data.batching import (
    CALL_TOKENS,
    SAFE_LENGTHS,
    Batch,
    cut_by_length,
    needed_length,
    round_up,
    row_lengths,
)
from fleetbert.engines.exits import Part
from fleetbert.engines.streams import Streams, first_batches

# input_ids, token_type_ids (int64 [texts, length]) → logits (float32 [texts, labels])
Run = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Begun(NamedTuple):
    """A batch under way: which rows its parts have, and what waits for the logits of each."""

    rows: list[np.ndarray]
    logits: list[Callable[[], np.ndarray]]


class Parts:
    """An opened program. As a function it answers one batch."""

    def __init__(self, runs: list[Run], pad_id: int, any_length: bool):
        """runs: one, or a stream for each thread (`engine.open_fused`). any_length: a row alone
        needs no padding."""
        self._pad_id = pad_id
        self._any_length = any_length
        self._streams = Streams(runs, self._warm_up)

    def __call__(self, input_ids: np.ndarray, token_type_ids: np.ndarray) -> np.ndarray:
        return _end(self._begin(input_ids, token_type_ids))

    def run_all(self, batches: Iterable[tuple[np.ndarray, Batch]], *_: object) -> Iterator[Part]:
        """Logits of batches, each with the numbers of its texts, in their order."""
        under_way: deque[tuple[np.ndarray, Begun]] = deque()
        for numbers, batch in batches:
            under_way.append((numbers, self._begin(batch.input_ids, batch.token_type_ids)))
            if len(under_way) > self._streams.count:
                numbers, begun = under_way.popleft()
                yield Part(numbers, _end(begun), 0)
        for numbers, begun in under_way:
            yield Part(numbers, _end(begun), 0)

    def _begin(self, input_ids: np.ndarray, token_type_ids: np.ndarray) -> Begun:
        paddle_inference.check_length(input_ids.shape[1])
        real = input_ids != self._pad_id
        lengths = row_lengths(real)
        rows = cut_by_length(lengths, CALL_TOKENS)
        parts = []
        for part in rows:
            length = round_up(int(lengths[part].max()), SAFE_LENGTHS)
            if self._any_length:
                length = needed_length(real[part, :length])
            parts.append((input_ids[part, :length], token_type_ids[part, :length]))
        return Begun(rows, [self._streams.start(_run, *part) for part in parts])

    def _warm_up(self, run: Run) -> None:
        for batch in first_batches(self._pad_id):
            run(*batch)


def _run(run: Run, input_ids: np.ndarray, token_type_ids: np.ndarray) -> np.ndarray:
    return run(input_ids, token_type_ids)


def _end(begun: Begun) -> np.ndarray:
    """The logits in the order of the batch's rows."""
    logits = np.concatenate([logits() for logits in begun.logits])
    return logits[np.argsort(np.concatenate(begun.rows))]
