"""What an inference request came to: told once to whoever counts, logs or traces."""

from __future__ import annotations

import functools
from typing import Any, Callable, NamedTuple

from fleetbert.deploy.inference.messages import Reply, Version
from fleetbert.deploy.inference.ops import metrics


class Done(NamedTuple):
    """An inference request that has been answered, or whose client has gone."""

    protocol: str  # "http" or "grpc"
    model: str  # "" where the request names none that there is: clients invent no series
    version: str
    code: str  # "200", "503"; "OK", "UNAVAILABLE"
    seconds: float  # from its last byte to the answer's first
    id: str
    texts: int = 0
    queue_seconds: float = 0.0
    compute_seconds: float = 0.0
    error: str = ""


Observer = Callable[[Done], Any]


def count(done: Done) -> None:
    """Into the metrics; the observer that every server has."""
    requests, seconds = _series(done.model, done.version, done.protocol, done.code)
    requests.inc()
    seconds.observe(done.seconds)


def answered(protocol: str, code: str, seconds: float, request_id: str, reply: Reply) -> Done:
    """Of a request that has its answer."""
    return Done(
        protocol,
        reply.model,
        reply.version,
        code,
        seconds,
        request_id,
        len(reply.labels),
        reply.queue_seconds,
        reply.compute_seconds,
    )


def refused(
    protocol: str, code: str, seconds: float, request_id: str, found: Version | None, error: str
) -> Done:
    """Of a request that has none; `found` is the version that it was meant for, if known."""
    model, version = (found.model, found.version) if found else ("", "")
    return Done(protocol, model, version, code, seconds, request_id, error=error)


@functools.lru_cache(maxsize=1024)
def _series(model: str, version: str, protocol: str, code: str) -> tuple[Any, Any]:
    return (
        metrics.REQUESTS.labels(model, version, protocol, code),
        metrics.REQUEST_SECONDS.labels(model, version, protocol),
    )
