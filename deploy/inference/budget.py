"""How many bytes of requests may wait at once, from their first byte to their token ids."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Iterator

from fleetbert.deploy.inference.messages import Failure, Reason
from fleetbert.deploy.inference.ops import metrics

RETRY_AFTER = 1.0  # seconds


class Budget:
    """What all requests of a server hold: at most `limit` bytes."""

    def __init__(self, limit: int):
        self.limit = limit
        self.used = 0

    @contextmanager
    def share(self) -> Iterator[Share]:
        """A request's, until the block ends."""
        share = Share(self)
        try:
            yield share
        finally:
            share.give_back()


class Share:
    def __init__(self, budget: Budget):
        self._budget = budget
        self._held = 0

    def take(self, size: int) -> None:
        """Hold so many bytes more; Failure EXHAUSTED if there is no room beside the others."""
        if self._budget.used + size > self._budget.limit and self._budget.used > self._held:
            metrics.EXHAUSTED.inc()
            raise Failure(
                Reason.EXHAUSTED,
                f"{self._budget.used} bytes of other requests wait, and this server holds "
                f"{self._budget.limit} (safety.max_waiting_bytes): try again",
                RETRY_AFTER,
            )
        self._budget.used += size
        self._held += size

    def give_back(self) -> None:
        self._budget.used -= self._held
        self._held = 0
