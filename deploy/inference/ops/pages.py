"""What people and Prometheus look at: the page at /, its figures at /status, /docs, /metrics.

Everything comes from the package: nothing here needs a network, and the pages' own policy has the
browser refuse any other host.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import math
import time
from collections import defaultdict
from pathlib import Path
from typing import Awaitable, Callable, Iterator, NamedTuple

import orjson
import psutil
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

import fleetbert
from fleetbert.core import limits
from fleetbert.deploy.inference.messages import Core, Failure, Statistics, Version
from fleetbert.deploy.inference.ops import metrics, output
from fleetbert.deploy.inference.workers import fork_server

FOLDER = Path(__file__).parent / "page"
CSS = Path(fleetbert.__file__).parent / "reports" / "page.css"  # the reports' style
SWAGGER = ("swagger-ui.css", "swagger-ui-bundle.js")

DOCS = """\
<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>fleetbert: calls</title>
<link rel="icon" href="data:,"><link rel="stylesheet" href="docs/swagger-ui.css"></head>
<body><div id="calls"></div><script src="docs/swagger-ui-bundle.js"></script>
<script>{script}</script></body>
</html>
"""
DOCS_SCRIPT = (
    'SwaggerUIBundle({url: "openapi.json", dom_id: "#calls", deepLinking: true, '
    "validatorUrl: null, tryItOutEnabled: true});"
)


def routes(core: Core, admin: bool) -> list[BaseRoute]:
    """What is at each path; without `admin` only what tells nothing of the load."""
    docs = _html(DOCS.format(script=DOCS_SCRIPT), DOCS_SCRIPT, "'self'")
    pages: dict[str, Callable[[], Response]] = {
        **{f"/docs/{name}": functools.partial(_asset, name) for name in SWAGGER},
        "/docs": lambda: docs,
    }
    if admin:
        began, home = time.monotonic(), _home()
        pages["/"] = lambda: home
        pages["/status"] = lambda: Response(
            orjson.dumps(status(core, began)), media_type="application/json"
        )
    routes: list[BaseRoute] = [Route(path, _endpoint(page)) for path, page in pages.items()]
    return [*routes, Route("/metrics", _metrics)] if admin else routes


def _endpoint(page: Callable[[], Response]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(_: Request) -> Response:
        return page()

    return endpoint


def _home() -> Response:
    """One file: its style and its script stand in it."""
    script = (FOLDER / "page.js").read_text(encoding="utf-8")
    style = CSS.read_text(encoding="utf-8") + (FOLDER / "page.css").read_text(encoding="utf-8")
    html = (FOLDER / "page.html").read_text(encoding="utf-8")
    html = html.replace("{{ style }}", style).replace("{{ version }}", fleetbert.__version__)
    return _html(html.replace("{{ script }}", script), script)


def _html(html: str, script: str, more: str = "") -> Response:
    """With a policy that allows this script and no other, and no host but this one."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}' {more}; style-src 'unsafe-inline' "
        f"{more}; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    headers = {"content-security-policy": policy, "x-content-type-options": "nosniff"}
    return Response(html, media_type="text/html", headers=headers)


async def _metrics(request: Request) -> Response:
    """In the format that the scraper accepts."""
    write, kind = choose_encoder(request.headers.get("accept", ""))
    return Response(write(metrics.REGISTRY), headers={"content-type": kind})


@functools.cache
def _asset(name: str) -> Response:
    """A file of Swagger UI, read when it is first asked for."""
    import swagger_ui_bundle  # type: ignore[import-untyped]  # large, and seldom needed

    kind = "text/css" if name.endswith(".css") else "text/javascript"
    content = (Path(swagger_ui_bundle.swagger_ui_path) / name).read_bytes()
    return Response(content, media_type=kind)


def status(core: Core, began: float) -> dict[str, object]:
    """Models and running totals: whoever polls takes the differences. began: by time.monotonic()"""
    try:
        versions, statistics = core.versions(), core.statistics()
    except Failure:
        versions, statistics = [], []
    by_name = {(counts["name"], counts["version"]): counts for counts in statistics}
    models: dict[str, list[dict[str, object]]] = {}
    for version in versions:
        counts = by_name.get((version.model, version.version))
        models.setdefault(version.model, []).append(_version(version, counts))
    processes = _processes()
    return {
        "fleetbert": fleetbert.__version__,
        "ready": core.ready(),
        "time": time.time(),
        "uptime": time.monotonic() - began,
        "processors": limits.read().processors,
        "cpu_seconds": sum(process.cpu_seconds for process in processes),
        "resident_bytes": sum(process.resident_bytes for process in processes),
        "models": [{"name": name, "versions": versions} for name, versions in models.items()],
        "requests": _sums(metrics.REQUESTS, "_total", "code"),
        "texts": sum(counts["inference_count"] for counts in statistics),
        "tokens": _total(metrics.TOKENS),
        "padding": _total(metrics.PADDING),
        "exits": _sums(metrics.EXITS, "_total", "layer"),
        "queued_tokens": _total(metrics.QUEUED_TOKENS, ""),
        "latency": _buckets(metrics.REQUEST_SECONDS),
    }


def _version(version: Version, counts: Statistics | None) -> dict[str, object]:
    same = ("version", "reason", "aliases", "task", "labels", "pair", "max_length", "layers")
    return {
        **{name: getattr(version, name) for name in (*same, "variant")},
        "state": version.state.value,
        "outputs": [tensor.name for tensor in version.outputs],
        "variants": [variant._asdict() for variant in version.variants],
        "texts": counts["inference_count"] if counts else 0,
    }


def _sums(metric: Collector, suffix: str, label: str = "") -> dict[str, float]:
    """Of a metric's samples, by one of their labels."""
    sums: dict[str, float] = defaultdict(float)
    for family in metric.collect():
        for sample in family.samples:
            if sample.name.endswith(suffix) and not sample.name.endswith("_created"):
                sums[sample.labels.get(label, "")] += sample.value
    return sums


def _total(metric: Collector, suffix: str = "_total") -> float:
    return sum(_sums(metric, suffix).values())


def _buckets(metric: Collector) -> list[tuple[float | None, float]]:
    """(upper bound in seconds, requests up to it), over all models; the last bound is None."""
    buckets = sorted((float(bound), n) for bound, n in _sums(metric, "_bucket", "le").items())
    return [(None if bound == math.inf else bound, requests) for bound, requests in buckets]


class Process(NamedTuple):
    role: str  # listen, fork (which makes workers) or worker
    resident_bytes: int
    cpu_seconds: float


def _processes() -> list[Process]:
    """Memory and processor time of the listening process and of those below it, the workers."""
    me = psutil.Process()
    processes = []
    for process in [me, *me.children(recursive=True)]:
        with contextlib.suppress(psutil.Error), process.oneshot():
            times, memory = process.cpu_times(), process.memory_info()
            others = "fork" if process.name() == fork_server.NAME else "worker"
            role = "listen" if process.pid == me.pid else others
            processes.append(Process(role, memory.rss, times.user + times.system))
    return processes


class Processes(Collector):
    """The same for Prometheus; by role, so that a replaced worker makes no new series."""

    def collect(self) -> Iterator[Metric]:
        shown = {
            "resident_bytes": "Resident memory of living processes",
            "cpu_seconds": "Processor time of living processes",
            "processes": "Living processes",
        }
        memory, cpu, count = (
            GaugeMetricFamily(f"fleetbert_{name}", meaning, labels=["role"])
            for name, meaning in shown.items()
        )
        processes = _processes()
        for role in sorted({process.role for process in processes}):
            chosen = [process for process in processes if process.role == role]
            memory.add_metric([role], sum(process.resident_bytes for process in chosen))
            cpu.add_metric([role], sum(process.cpu_seconds for process in chosen))
            count.add_metric([role], len(chosen))
        dropped = CounterMetricFamily(
            "fleetbert_log_lines_dropped", "Lines that nobody read in time", output.dropped
        )
        return iter((memory, cpu, count, dropped))
