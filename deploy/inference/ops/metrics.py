"""What Prometheus is told. Each series stands here once; who sees the event counts it."""

from __future__ import annotations

from typing import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry()
OF_VERSION = ("model", "version")
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


def counter(name: str, meaning: str, *labels: str) -> Counter:
    return Counter(f"fleetbert_{name}", meaning, labels, registry=REGISTRY)


def histogram(
    name: str, meaning: str, *labels: str, buckets: Sequence[float] = SECONDS
) -> Histogram:
    return Histogram(f"fleetbert_{name}", meaning, labels, buckets=buckets, registry=REGISTRY)


# Counted by the protocols.
REQUESTS = counter(
    "requests",
    "Inference requests answered, by protocol and status code",
    *(*OF_VERSION, "protocol", "code"),
)
REQUEST_SECONDS = histogram(
    "request_seconds",
    "From a request's last byte to its answer's first",
    *(*OF_VERSION, "protocol"),
)
EXHAUSTED = counter(
    "exhausted", "Requests refused as too many bytes wait (safety.max_waiting_bytes)"
)
REFUSED_CONNECTIONS = counter(
    "refused_connections", "HTTP connections above safety.max_connections"
)

# Counted by the queue and the workers.
QUEUE_SECONDS = histogram("queue_seconds", "Waiting of a text for its batch", *OF_VERSION)
BATCH_SECONDS = histogram("batch_seconds", "Time of a batch in the engine", *OF_VERSION)
BATCH_TEXTS = histogram(
    "batch_texts", "Texts of a batch", *OF_VERSION, buckets=(1, 2, 4, 8, 16, 32, 64, 128)
)
TOKENS = counter("tokens", "Tokens of texts", *OF_VERSION)
PADDING = counter("padding_tokens", "Tokens of padding", *OF_VERSION)
TRUNCATED = counter("truncated_texts", "Texts truncated to the model's length", *OF_VERSION)
CUT = counter("cut_texts", "As truncated_texts: its former name, for one release", *OF_VERSION)
EXITS = counter("exits", "Texts by the layer that answered them", *OF_VERSION, "layer")
QUEUED_TOKENS = Gauge(
    "fleetbert_queued_tokens", "Tokens that wait for a batch", OF_VERSION, registry=REGISTRY
)
REFUSED = counter("refused", "Requests that were not answered, by reason", *OF_VERSION, "reason")

# Counted by the repository and the pool of the workers.
LOADS = counter("loads", "Versions loaded (ready, refused) and unloaded", "model", "outcome")
WORKER_RESTARTS = counter(
    "worker_restarts",
    "Worker processes that were replaced, by cause (crash, hang)",
    *("model", "cause"),
)

_PER_VERSION = (
    *(REQUESTS, REQUEST_SECONDS, QUEUE_SECONDS, BATCH_SECONDS, BATCH_TEXTS),
    *(TOKENS, PADDING, TRUNCATED, CUT, EXITS, QUEUED_TOKENS, REFUSED),
)


def forget(model: str, version: str) -> None:
    """Drop the series of a version that is gone: a server that changes versions for months would
    tell ever more of them. Whoever holds one of its counters counts nowhere from now on."""
    for metric in _PER_VERSION:
        samples = [sample for family in metric.collect() for sample in family.samples]
        labels = [{k: v for k, v in s.labels.items() if k != "le"} for s in samples]
        of_version = [row for row in labels if (row["model"], row["version"]) == (model, version)]
        for values in {tuple(labels.values()) for labels in of_version}:
            metric.remove(*values)
