"""OpenTelemetry traces: a span for each request, with its waiting and its computing below it.

Imported only where `logs.otlp_endpoint` is set: its packages are an extra. A client's
`traceparent` (W3C Trace Context) makes its span the parent.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from typing import Iterator, Mapping, Sequence

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from fleetbert import __version__
from fleetbert.deploy.inference.ops.observe import Done

log = logging.getLogger("fleetbert.serve")

FLUSH_SECONDS = 3.0  # at the end; a collector that is away must not keep the server


class _Exporter(OTLPSpanExporter):
    """OpenTelemetry's, but one line in the log when the collector goes, and one when it returns."""

    def __init__(self, endpoint: str):
        super().__init__(endpoint)
        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
        self._where, self._away = endpoint, False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        words = "refuses them"
        try:
            result = super().export(spans)
        except Exception as error:
            result, words = SpanExportResult.FAILURE, f"does not answer ({type(error).__name__})"
        away = result is not SpanExportResult.SUCCESS
        if away and not self._away:
            log.warning(f"traces are dropped: the collector {self._where} {words}")
        elif self._away and not away:
            log.info(f"traces are sent again: the collector {self._where} answers")
        self._away = away
        return result


class Tracer:
    """Sends spans to an OTLP collector over HTTP, from a thread of its own."""

    def __init__(self, endpoint: str):
        resource = Resource.create({"service.name": "fleetbert", "service.version": __version__})
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(_Exporter(endpoint)))
        self._tracer = self._provider.get_tracer("fleetbert.serve")
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def request(self, name: str, headers: Mapping[str, str], number: str) -> Iterator[trace.Span]:
        """The span of a request, the current one within the block."""
        parent = self._propagator.extract(headers)
        with self._tracer.start_as_current_span(
            name, parent, kind=trace.SpanKind.SERVER, attributes={"request.id": number}
        ) as span:
            yield span

    def note(self, done: Done) -> None:
        """An observer of inference: below the current span come `queue` and `compute`. Only their
        lengths are known; they are put before now, the way back from the engine being short."""
        span = trace.get_current_span()
        span.set_attributes({"model.name": done.model, "model.version": done.version})
        if done.error:
            span.set_status(trace.StatusCode.ERROR, done.error)
            return
        span.set_attribute("texts", done.texts)
        end = time.time_ns()
        computed = end - int(1e9 * done.compute_seconds)
        queued = computed - int(1e9 * done.queue_seconds)
        self._tracer.start_span("queue", start_time=queued).end(computed)
        self._tracer.start_span("compute", start_time=computed).end(end)

    def close(self) -> None:
        """Send what is left, for a few seconds at most."""
        thread = threading.Thread(target=self._provider.shutdown, daemon=True)
        thread.start()
        thread.join(FLUSH_SECONDS)
