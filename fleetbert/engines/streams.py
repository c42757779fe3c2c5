"""Threads that each run a program of their own.

Threads that share a call wait for each other after every operator. A stream is a program for one
thread: with one for each thread BERT-base in int8 answers 7 % more texts (2 threads), MiniLM as
many, while one batch alone takes up to twice as long. What NumPy does between calls, as with early
exit, goes on beside the others' calls. Streams share their parameters, but each holds the weights'
integers and its own hidden states (BERT-base: 100 MB).
"""

from __future__ import annotations

import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Generic, Iterator, Sequence, TypeVar

from fleetbert.data import ragged
from fleetbert.data.batching import SAFE_LENGTHS
from fleetbert.data.ragged import Texts

Owned = TypeVar("Owned")
Result = TypeVar("Result")


class Streams(Generic[Owned]):
    """What each of several threads has, to do work with; the caller's thread where it is one."""

    def __init__(self, owned: Sequence[Owned], warm_up: Callable[[Owned], object]):
        """owned: what the threads take, one each, and keep to, for oneDNN keeps integers by thread.
        warm_up: makes the first runs of all programs of one. These have to be over in one thread
        before the next begins, because the first changes the parameters of all."""
        self.count = len(owned)
        self._first = owned[0]
        self._threads = None
        if self.count > 1:
            taken = (iter(owned), warm_up)
            self._threads = ThreadPoolExecutor(self.count, "stream", self._take, taken)
            self._taken = threading.local()
            self._taking = threading.Lock()

    def start(self, work: Callable[..., Result], *arguments: object) -> Callable[[], Result]:
        """Have a thread do work(what it has, *arguments); what this gives waits for the result. The
        caller's thread does it then."""
        if self._threads is None:
            return functools.partial(work, self._first, *arguments)
        return self._threads.submit(self._do, work, arguments).result

    def _take(self, owned: Iterator[Owned], warm_up: Callable[[Owned], object]) -> None:
        with self._taking:
            self._taken.taken = next(owned)
            warm_up(self._taken.taken)

    def _do(self, work: Callable[..., Result], arguments: tuple[object, ...]) -> Result:
        return work(self._taken.taken, *arguments)


def first_batches() -> Iterator[Texts]:
    """Texts to warm up with: one row and several, for which there are different programs."""
    for count in (1, 2):
        yield ragged.uniform(count, SAFE_LENGTHS[0], 1)
