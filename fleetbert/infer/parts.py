"""A batch answered in parts of like length, and parts of many batches at once.

Where lengths differ, a call for the short rows and one for the long ones cost less than the padding
of one call for both.

Threads that share a call wait for each other after every operator. A stream is a program for one
thread; with one for each thread BERT-base in int8 answers 7 % more texts (2 threads), MiniLM as
many, while one batch alone takes up to twice as long. Streams share their parameters, but each
holds the weights' integers and its own hidden states (BERT-base: 100 MB).
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Iterable, Iterator, NamedTuple

import numpy as np

from fleetbert.data.batching import (
    SAFE_LENGTHS,
    Batch,
    cut_by_length,
    round_up,
    row_lengths,
    without_padding,
)
from fleetbert.infer import workarounds
from fleetbert.infer.exits import Part

# input_ids, token_type_ids (int64 [texts, length]) → logits (float32 [texts, labels])
Run = Callable[[np.ndarray, np.ndarray], np.ndarray]
# A call takes as long as (CALL_WIDTH / width)² tokens beside its own: MiniLM 110, BERT-base 30.
CALL_WIDTH = 4096


class Begun(NamedTuple):
    """A batch under way: which rows its parts have, and their logits as they come."""

    rows: list[np.ndarray]
    logits: Iterator[np.ndarray]


class Parts:
    """An opened program. As a function it answers one batch."""

    def __init__(self, runs: list[Run], pad_id: int, width: int, any_length: bool):
        """runs: one, or a stream for each thread (`engine.open_fused`). width: of the hidden
        states. any_length: a row alone needs no padding."""
        self._run = runs[0]
        self._pad_id = pad_id
        self._call_tokens = (CALL_WIDTH / width) ** 2
        self._any_length = any_length
        self._streams = len(runs)
        self._threads = None
        if len(runs) > 1:
            self._threads = ThreadPoolExecutor(len(runs), "stream", self._take, (iter(runs),))
            self._own = threading.local()
            self._taking = threading.Lock()

    def __call__(self, input_ids: np.ndarray, token_type_ids: np.ndarray) -> np.ndarray:
        return _end(self._begin(input_ids, token_type_ids))

    def run_all(self, batches: Iterable[tuple[np.ndarray, Batch]], *_: object) -> Iterator[Part]:
        """Logits of batches, each with the numbers of its texts, in their order."""
        under_way: deque[tuple[np.ndarray, Begun]] = deque()
        for numbers, batch in batches:
            under_way.append((numbers, self._begin(batch.input_ids, batch.token_type_ids)))
            if len(under_way) > self._streams:
                numbers, begun = under_way.popleft()
                yield Part(numbers, _end(begun), 0)
        for numbers, begun in under_way:
            yield Part(numbers, _end(begun), 0)

    def _begin(self, input_ids: np.ndarray, token_type_ids: np.ndarray) -> Begun:
        workarounds.check_length(input_ids.shape[1])
        lengths = row_lengths(input_ids != self._pad_id)
        rows = cut_by_length(lengths, self._call_tokens)
        parts = []
        for part in rows:
            length = round_up(int(lengths[part].max()), SAFE_LENGTHS)
            arrays = (input_ids[part, :length], token_type_ids[part, :length])
            parts.append(without_padding(*arrays, self._pad_id) if self._any_length else arrays)
        if self._threads is None:
            return Begun(rows, (self._run(*part) for part in parts))
        return Begun(rows, self._threads.map(self._run_own, parts))

    def _take(self, runs: Iterator[Run]) -> None:
        """In each thread: take a stream and keep to it, for oneDNN keeps integers by thread. The
        first run of both programs, of one row and of several, has to be over in one thread before
        the next begins."""
        with self._taking:
            self._own.run = next(runs)
            for count in (1, 2):
                ids = np.full((count, SAFE_LENGTHS[0]), int(self._pad_id == 0))
                self._own.run(ids, np.zeros_like(ids))

    def _run_own(self, part: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        return self._own.run(*part)


def _end(begun: Begun) -> np.ndarray:
    """The logits in the order of the batch's rows."""
    logits = np.concatenate(list(begun.logits))
    return logits[np.argsort(np.concatenate(begun.rows))]
