"""What Prometheus is told. Each series stands here once; who sees the event counts it."""

from __future__ import annotations

import math
from typing import Iterator, Sequence

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

REGISTRY = CollectorRegistry()
OF_VERSION = ("model", "version")
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


class Seconds:
    """Of one series of a `SecondsHistogram`."""

    def __init__(self, most_pending: int) -> None:
        self.counts = np.zeros(len(SECONDS) + 1, np.int64)  # by bucket; the last has no bound
        self.sum = 0.0
        self.pending: list[float] = []  # not counted yet
        self._most_pending = most_pending

    def observe(self, seconds: float) -> None:
        """Something took so long."""
        self.pending.append(seconds)
        if len(self.pending) >= self._most_pending:
            self.count()

    def count(self) -> None:
        """What is pending."""
        places = np.searchsorted(SECONDS, self.pending)
        self.counts += np.bincount(places, minlength=len(self.counts))
        self.sum += math.fsum(self.pending)
        self.pending.clear()


class SecondsHistogram(Collector):
    """A histogram for what happens with every request. The library's takes 2 microseconds each
    time; this one counts when it is looked at, or when `most_pending` are not counted yet."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labelnames: Sequence[str],
        registry: CollectorRegistry | None,
        most_pending: int = 1000,
    ):
        self._described = (name, documentation)
        self._labelnames = labelnames
        self._most_pending = most_pending
        self._series: dict[tuple[str, ...], Seconds] = {}
        if registry is not None:
            registry.register(self)

    def labels(self, *values: str) -> Seconds:
        """The series with these values of the labels."""
        if values not in self._series:
            self._series[values] = Seconds(self._most_pending)
        return self._series[values]

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(*self._described, labels=self._labelnames)
        bounds = [floatToGoString(bound) for bound in (*SECONDS, math.inf)]
        for values, series in self._series.items():
            series.count()
            buckets = list(zip(bounds, np.cumsum(series.counts).astype(float).tolist()))
            family.add_metric(values, buckets, series.sum)
        yield family


# Counted by the protocols.
REQUESTS = Counter(
    "fleetbert_requests",
    "Inference requests answered, by protocol and status code",
    (*OF_VERSION, "protocol", "code"),
    registry=REGISTRY,
)
REQUEST_SECONDS = SecondsHistogram(
    "fleetbert_request_seconds",
    "From a request's last byte to its answer's first",
    (*OF_VERSION, "protocol"),
    REGISTRY,
)

# Counted by the queue and the workers.
QUEUE_SECONDS = SecondsHistogram(
    "fleetbert_queue_seconds", "Waiting of a text for its batch", OF_VERSION, REGISTRY
)
BATCH_SECONDS = Histogram(
    "fleetbert_batch_seconds",
    "Time of a batch in the engine",
    OF_VERSION,
    buckets=SECONDS,
    registry=REGISTRY,
)
BATCH_TEXTS = Histogram(
    "fleetbert_batch_texts",
    "Texts of a batch",
    OF_VERSION,
    buckets=(1, 2, 4, 8, 16, 32, 64, 128),
    registry=REGISTRY,
)
TOKENS = Counter("fleetbert_tokens", "Tokens of texts", OF_VERSION, registry=REGISTRY)
PADDING = Counter("fleetbert_padding_tokens", "Tokens of padding", OF_VERSION, registry=REGISTRY)
CUT = Counter(
    "fleetbert_cut_texts", "Texts cut to the model's length", OF_VERSION, registry=REGISTRY
)
EXITS = Counter(
    "fleetbert_exits",
    "Texts by the layer that answered them",
    (*OF_VERSION, "layer"),
    registry=REGISTRY,
)
QUEUED_TOKENS = Gauge(
    "fleetbert_queued_tokens", "Tokens that wait for a batch", OF_VERSION, registry=REGISTRY
)
REFUSED = Counter(
    "fleetbert_refused",
    "Requests that were not answered, by reason",
    (*OF_VERSION, "reason"),
    registry=REGISTRY,
)

# Counted by the repository and the keeper of the workers.
LOADS = Counter(
    "fleetbert_loads",
    "Versions loaded (ready, refused) and unloaded",
    ("model", "outcome"),
    registry=REGISTRY,
)
WORKER_RESTARTS = Counter(
    "fleetbert_worker_restarts",
    "Worker processes that were replaced, by cause (crash, hang)",
    ("model", "cause"),
    registry=REGISTRY,
)
