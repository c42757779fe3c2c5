"""report-early-exit-....html: the accuracy of each layer's head; accuracy and cost by `speed`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fleetbert import bundle as bundles
from fleetbert import config as schema
from fleetbert.compat import environment
from fleetbert.compression import early_exit, paired
from fleetbert.compression.early_exit import Choice, Observed
from fleetbert.compression.gate import Gate
from fleetbert.core.quantities import number
from fleetbert.reports import figures, page
from fleetbert.reports.figures import STYLE, TRAIN, Drawing
from fleetbert.reports.page import Figure, Section, Table, Text

log = logging.getLogger(__name__)

LISTED = 5  # every so many of the points of the curve are in the table, and the chosen one


def by_layer(observed: Observed) -> list[float]:
    """Accuracy, 0 to 1, if all texts left after that layer."""
    layers = range(1, len(observed.doubt) + 1)
    return [observed.accuracy_at(np.full(observed.texts, layer)) for layer in layers]


def curve(observed: Observed, choice: Choice) -> list[Choice]:
    """What all values of speed give with the groups that were chosen; the first lets none leave."""
    speeds = sorted({0.0, choice.speed, *early_exit.SPEEDS})
    return [early_exit.evaluate(observed, choice.ends, speed) for speed in speeds]


def write(
    path: Path,
    observed: Observed,
    choice: Choice,
    target: str,
    gate: Gate,
    job: schema.SelfDistill,
    why_not: str | None,
    drop: bundles.Drop | None = None,
) -> None:
    """Write the page. why_not: said first of a variant `target` that was not added, for leaving
    early does not pay; drop: that the gate found."""
    choice = early_exit.evaluate(observed, choice.ends, choice.speed)
    points, root = curve(observed, choice), gate.bundle.root.resolve()
    whole, least = points[0].mean_flops, gate.float32_accuracy - gate.max_drop
    with matplotlib.rc_context(STYLE):
        drawn = [
            Figure("Accuracy after each layer, if all texts left there", _layers(observed, least)),
            Figure("Accuracy and layers", _over("mean_layers", 1.0, points, choice, least)),
            Figure("Accuracy and operations", _over("mean_flops", whole, points, choice, least)),
        ]
    title = f"{root.parent.name}/{root.name}: {target}"
    texts = f"{gate.data} ({number(observed.texts)} texts)"
    summary = (
        f"Groups of layers end after {', '.join(map(str, choice.ends))}. A text leaves after the "
        f"first whose head's uncertainty is under speed {choice.speed}: {choice.mean_layers:.2f} "
        f"layers a text, {choice.mean_flops / whole:.0%} of the operations, accuracy "
        f"{choice.accuracy:.4f}"
    )
    parts = [Text(why_not, "card")] if why_not else []
    parts.append(Text(f"{summary}, {paired.describe(drop)}." if drop else f"{summary}."))
    page.write(
        path,
        title=title,
        kind="early exit",
        note=f"accuracy on {texts} · the gate asks for {least:.4f}",
        sections=[
            Section("", [*parts, *drawn, _speeds(points, choice)]),
            page.how_it_was_made(job.model_dump(), "Machine", environment.machine(gate.threads)),
        ],
    )
    log.info(f"report: {path}")


def _speeds(points: Sequence[Choice], choice: Choice) -> Table:
    """Every so many of the points, and the chosen one."""
    rows = [
        (
            f"{point.speed} (chosen)" if point.speed == choice.speed else str(point.speed),
            f"{point.accuracy:.4f}",
            f"{point.mean_layers:.2f}",
            number(point.mean_flops / 1e6),
            f"{point.mean_flops / points[0].mean_flops:.2f}",
        )
        for place, point in enumerate(points)
        if place % LISTED == 0 or point.speed == choice.speed
    ]
    columns = ["speed", "accuracy", "layers a text", "million operations a text", "of all layers'"]
    note = (
        "Operations of products with weights and of attention; the last layer computes [CLS] "
        "alone. At speed 0 no text leaves early."
    )
    return Table(columns, rows, note)


def _axes(least: float) -> tuple[Drawing, Axes]:
    figure, axes = figures.axes_of()
    figures.draw_gate(axes, 100 * least)
    figures.name_accuracy(axes)
    axes.margins(y=0.15)
    return figure, axes


def _layers(observed: Observed, least: float) -> Drawing:
    figure, axes = _axes(least)
    values = by_layer(observed)
    axes.plot(range(1, len(values) + 1), [100 * value for value in values], "o-", color=TRAIN)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("layer")
    return figure


def _over(key: str, unit: float, points: Sequence[Choice], choice: Choice, least: float) -> Drawing:
    """Accuracy over what a text costs in the mean, a point a speed, the chosen one ringed."""
    figure, axes = _axes(least)
    costs = [getattr(point, key) / unit for point in points]
    axes.plot(costs, [100 * point.accuracy for point in points], "o-", color=TRAIN, markersize=3)
    figures.ring(axes, getattr(choice, key) / unit, 100 * choice.accuracy)
    axes.set_xlim(left=0)
    what = "layers a text" if key == "mean_layers" else "operations, of all layers' = 1"
    axes.set_xlabel(f"{what}  (a point a speed; ringed: chosen)")
    return figure
