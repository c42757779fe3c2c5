"""How many bytes of requests may wait at once, from their first byte to their token ids."""

from __future__ import annotations

from types import TracebackType

from fleetbert.deploy.inference.messages import Failure, Reason
from fleetbert.deploy.inference.ops import metrics

RETRY_AFTER = 1.0  # seconds


class Budget:
    """What all requests of a server hold: at most `limit` bytes."""

    def __init__(self, limit: int):
        self.limit = limit
        self.used = 0

    def share(self) -> Share:
        """A request's, until the block ends."""
        return Share(self)


class Share:
    """What one request holds."""

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
        """Hold nothing."""
        self._budget.used -= self._held
        self._held = 0

    def __enter__(self) -> Share:
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self.give_back()
