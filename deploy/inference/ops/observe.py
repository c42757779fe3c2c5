"""What an inference request came to: told once to whoever counts, logs or traces."""

from __future__ import annotations

import functools
import time
from types import TracebackType
from typing import Callable, NamedTuple, Sequence

from prometheus_client import Counter, Histogram

from fleetbert.deploy.inference.messages import Response, Version
from fleetbert.deploy.inference.ops import metrics


class Done(NamedTuple):
    """An inference request that has been answered, or whose client has gone."""

    protocol: str  # "http" or "grpc"
    model: str  # "" where the request names none that there is: clients invent no series
    version: str
    code: str  # "200", "503"; "OK", "UNAVAILABLE"
    seconds: float  # from its last byte to the answer's first
    id: str
    error: str = ""
    texts: int = 0
    queue_seconds: float = 0.0
    compute_seconds: float = 0.0


Observer = Callable[[Done], None]


def count(done: Done) -> None:
    """Into the metrics; the observer that every server has."""
    requests, seconds = _series(done.model, done.version, done.protocol, done.code)
    requests.inc()
    seconds.observe(done.seconds)


class Observed:
    """A block that answers an inference request; observers are told at its end, however it ends.

    code_of: the code and the words of an error. What is known of the request is set as it becomes
    known.
    """

    def __init__(
        self,
        protocol: str,
        ok: str,
        code_of: Callable[[BaseException], tuple[str, str]],
        observers: Sequence[Observer],
        request_id: str = "",
    ):
        self.request_id = request_id
        self.version: Version | None = None
        self.response: Response | None = None
        self._protocol, self._ok, self._code_of = protocol, ok, code_of
        self._observers = observers
        self._began = time.perf_counter()

    def arrived(self) -> None:
        """The request's last byte has come."""
        self._began = time.perf_counter()

    def __enter__(self) -> Observed:
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        seconds = time.perf_counter() - self._began
        version, response = self.version, self.response
        if error is not None or response is None:
            names = (version.model, version.version) if version else ("", "")
            code, words = self._code_of(error or RuntimeError("no answer"))
            done = Done(self._protocol, *names, code, seconds, self.request_id, words)
        else:
            names = response.model, response.version
            done = Done(
                self._protocol,
                *names,
                self._ok,
                seconds,
                self.request_id,
                texts=response.size,
                queue_seconds=response.queue_seconds,
                compute_seconds=response.compute_seconds,
            )
        for observer in self._observers:
            observer(done)


@functools.lru_cache(maxsize=1024)
def _series(model: str, version: str, protocol: str, code: str) -> tuple[Counter, Histogram]:
    return (
        metrics.REQUESTS.labels(model, version, protocol, code),
        metrics.REQUEST_SECONDS.labels(model, version, protocol),
    )


def forget(model: str, version: str) -> None:
    """Drop the series of a version that is gone."""
    _series.cache_clear()
    metrics.forget(model, version)
