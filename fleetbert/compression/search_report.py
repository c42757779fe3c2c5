"""The report of a search: the front of accuracy over time and over size."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Sequence

import matplotlib

from fleetbert import bundle as bundles
from fleetbert import config
from fleetbert.compat import environment
from fleetbert.compression.candidate import Candidate
from fleetbert.compression.gate import Gate
from fleetbert.core.quantities import number
from fleetbert.reports import figures, page
from fleetbert.reports.figures import DEV, STYLE, TRAIN, Drawing
from fleetbert.reports.page import Figure, Section, Table, Text
from fleetbert.tasks import FIGURES


def limits(job: config.Compress) -> str:
    """The budgets and the largest drop, as words."""
    parts = [f"{number(job.budget.ms)} ms a text"] if job.budget.ms else []
    parts += [f"{number(job.budget.mb)} MB"] if job.budget.mb else []
    return ", ".join([*parts, f"a drop of at most {job.gate.max_accuracy_drop}"])


def write(
    path: Path,
    job: config.Compress,
    gate: Gate,
    float32: Candidate,
    tried: Sequence[Candidate],
    verdict: str,
) -> None:
    """Write the page. verdict: what was chosen, or why nothing was."""
    metric = gate.model.task.metrics.gate_metric
    shown = FIGURES.get(metric, metric)
    points = [float32, *(candidate for candidate in tried if not candidate.failed)]
    axes = {
        "ms": ("time", "ms, one text alone", job.budget.ms),
        "mb": ("size", "MB, with the tokenizer", job.budget.mb),
    }
    with matplotlib.rc_context(STYLE):
        drawn = [
            Figure(
                f"{shown[0].upper()}{shown[1:]} and {title}",
                _front(points, key, label, budget, job.gate.max_accuracy_drop, metric),
            )
            for key, (title, label, budget) in axes.items()
        ]
    columns = ["candidate", "variant", shown, "drop (95 %)", "ms", "float32's ms", "MB"]
    rows = [_row(point, point.drop) for point in tried if point.drop is not None]
    failed = [Text(point.describe(), "muted") for point in tried if point.failed]
    note = (
        f"On {job.selection.data}. Times are medians, each in turns with float32. Named in the "
        "figures: candidates that no other beats in both."
    )
    page.write(
        path,
        title=str(job.bundle),
        kind="search",
        note=f"allowed: {limits(job)}",
        sections=[
            Section("", [Text(verdict, "card")]),
            Section("Candidates", [*drawn, Table(columns, rows, note), *failed]),
            page.how_it_was_made(job.model_dump(), "Machine", environment.machine(gate.threads)),
        ],
    )


def _row(candidate: Candidate, drop: bundles.Drop) -> list[str]:
    return [
        candidate.name,
        candidate.variant,
        f"{candidate.accuracy:.4f}",
        f"{drop.value:.4f} ({drop.low:.4f} to {drop.high:.4f})",
        number(candidate.ms),
        number(candidate.float32_ms),
        f"{candidate.mb:.1f}",
    ]


def front(points: Sequence[Candidate], key: str) -> list[Candidate]:
    """Those that no other beats in accuracy and in time or size (`key`), the least first."""
    best: list[Candidate] = []
    for point in sorted(points, key=lambda point: (getattr(point, key), -point.accuracy)):
        if not best or point.accuracy > best[-1].accuracy:
            best.append(point)
    return best


def _front(
    points: Sequence[Candidate],
    key: str,
    label: str,
    budget: float | None,
    max_drop: float,
    metric: str,
) -> Drawing:
    figure, axes = figures.axes_of(3.6)
    figures.draw_gate(axes, 100 * (points[0].accuracy - max_drop))
    best = front(points, key)
    axes.plot(
        [getattr(point, key) for point in best],
        [100 * point.accuracy for point in best],
        color=TRAIN,
    )
    for point in points:
        place = getattr(point, key), 100 * point.accuracy
        axes.plot(*place, "o", color=TRAIN, markerfacecolor=TRAIN if point in best else "none")
        if point in best:
            style: dict[str, Any] = {"textcoords": "offset points", "va": "top", "fontsize": 8}
            axes.annotate(point.name, place, xytext=(5, -5), **style)
    if budget is not None:
        axes.axvline(budget, color=DEV, linewidth=1, linestyle="--")
    axes.margins(x=0.3, y=0.2)
    axes.set_xlim(left=0)
    axes.set_xlabel(label)
    figures.name_accuracy(axes, metric)
    return figure
