"""What a version counts: Prometheus' series, and the protocol's statistics."""

from __future__ import annotations

import time
from collections import Counter
from typing import Callable, Sequence

from prometheus_client import Counter as PrometheusCounter

from fleetbert.deploy.inference.messages import Duration, Reason, Response, Statistics
from fleetbert.deploy.inference.ops import metrics


class Counts:
    """Of one version since it was loaded."""

    def __init__(self, model: str, version: str):
        self._names = (model, version)
        self._queue_seconds = metrics.QUEUE_SECONDS.labels(model, version)
        self._batch_seconds = metrics.BATCH_SECONDS.labels(model, version)
        self._batch_texts = metrics.BATCH_TEXTS.labels(model, version)
        self._tokens = metrics.TOKENS.labels(model, version)
        self._padding = metrics.PADDING.labels(model, version)
        self._queued = metrics.QUEUED_TOKENS.labels(model, version)
        self._exits: dict[int, PrometheusCounter] = {}  # by layer
        counters = metrics.TRUNCATED, metrics.CUT
        self._truncated = [counter.labels(model, version) for counter in counters]
        self._last = 0
        self._texts = 0
        self._success = [0.0, 0.0]  # how many, and their seconds
        self._fail = [0.0, 0.0]
        self._queue = [0.0, 0.0]
        self._compute = [0.0, 0.0]
        self._batches: dict[int, list[float]] = {}  # the same by the number of texts

    def queued(self, tokens: Callable[[], float]) -> None:
        """Whoever asks how many tokens wait asks this."""
        self._queued.set_function(tokens)

    def truncated(self, texts: int) -> None:
        for counter in self._truncated if texts else ():
            counter.inc(texts)

    def batch(
        self, texts: int, tokens: int, padded: int, layers: Sequence[int], seconds: float
    ) -> None:
        """A batch was computed, as `padded` tokens; its texts left after these layers."""
        self._batch_seconds.observe(seconds)
        self._batch_texts.observe(texts)
        self._tokens.inc(tokens)
        self._padding.inc(padded - tokens)
        self._texts += texts
        _add(self._batches.setdefault(texts, [0.0, 0.0]), seconds)
        for layer, count in Counter(layers).items():
            if layer not in self._exits:
                self._exits[layer] = metrics.EXITS.labels(*self._names, str(layer))
            self._exits[layer].inc(count)

    def waited(self, seconds: Sequence[float]) -> None:
        """So long each text of a batch."""
        for value in seconds:
            self._queue_seconds.observe(value)

    def answered(self, response: Response, seconds: float) -> None:
        self._last = int(time.time() * 1000)
        _add(self._success, seconds)
        _add(self._queue, response.queue_seconds)
        _add(self._compute, response.compute_seconds)

    def refused(self, reason: Reason, seconds: float) -> None:
        _add(self._fail, seconds)
        metrics.REFUSED.labels(*self._names, reason.value).inc()

    def statistics(self) -> Statistics:
        model, version = self._names
        return {
            "name": model,
            "version": version,
            "last_inference": self._last,
            "inference_count": self._texts,
            "execution_count": sum(int(pair[0]) for pair in self._batches.values()),
            "inference_stats": {
                "success": _duration(self._success),
                "fail": _duration(self._fail),
                "queue": _duration(self._queue),
                **_computed(self._compute),
            },
            "batch_stats": [
                {"batch_size": texts, **_computed(pair)}
                for texts, pair in sorted(self._batches.items())
            ],
        }


def _add(pair: list[float], seconds: float) -> None:
    pair[0] += 1
    pair[1] += seconds


def _duration(pair: list[float]) -> Duration:
    return {"count": int(pair[0]), "ns": int(pair[1] * 1e9)}


def _computed(pair: list[float]) -> dict[str, Duration]:
    """In the protocol's three parts. Tokenizing and answering are not told apart from computing;
    Triton's perf_analyzer ends unless the three have the same count."""
    nothing = _duration([pair[0], 0.0])
    return {
        "compute_input": nothing,
        "compute_infer": _duration(pair),
        "compute_output": nothing,
    }
