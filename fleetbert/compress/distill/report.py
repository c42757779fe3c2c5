"""report-early-exit-....html: how right each layer's head is; what each `speed` gives and costs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Sequence

import matplotlib
import numpy as np
import yaml
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fleetbert import bundle as bundles
from fleetbert import config as schema
from fleetbert.compat import environment
from fleetbert.compress import early_exit, paired
from fleetbert.compress.early_exit import Choice, Observed
from fleetbert.compress.gate import Gate
from fleetbert.reports import page
from fleetbert.reports.page import STYLE, TRAIN

log = logging.getLogger(__name__)

TEMPLATE = Path(__file__).with_name("report.html.j2")
LISTED = 5  # every so many of the points of the curve are in the table, and the chosen one


def name(target: str) -> str:
    """The page's file name in the bundle."""
    return f"report-{target}.html"


def by_layer(found: Observed) -> list[float]:
    """Accuracy, 0 to 1, if all texts left after that layer."""
    layers, texts = range(1, len(found.predicted) + 1), len(found.truth)
    return [found.accuracy_at(np.full(texts, layer)) for layer in layers]


def curve(found: Observed, choice: Choice) -> list[Choice]:
    """What all values of speed give with the groups that were chosen; the first lets none leave."""
    speeds = sorted({0.0, choice.speed, *early_exit.SPEEDS})
    return [early_exit.judge(found, choice.ends, speed) for speed in speeds]


def write(
    path: Path,
    found: Observed,
    choice: Choice,
    target: str,
    gate: Gate,
    job: schema.SelfDistill,
    why_not: str | None,
    drop: bundles.Drop | None = None,
) -> None:
    """Write the page. why_not: said first of a variant `target` that was not added, for leaving
    early does not pay; drop: that the gate found."""
    choice = early_exit.judge(found, choice.ends, choice.speed)
    points, root = curve(found, choice), gate.bundle.root.resolve()
    whole, least = points[0].mean_flops, gate.float32_accuracy - gate.max_drop
    with matplotlib.rc_context(STYLE):
        figures = [
            ("Accuracy after each layer, if all texts left there", _layers(found, least)),
            ("Accuracy and layers", _over("mean_layers", 1.0, points, choice, least)),
            ("Accuracy and operations", _over("mean_flops", whole, points, choice, least)),
        ]
    page.write(
        path,
        TEMPLATE,
        title=f"{root.parent.name}/{root.name}",
        target=target,
        data=gate.data,
        texts=len(found.truth),
        least=least,
        why_not=why_not,
        drop=drop and paired.describe(drop),
        choice=choice,
        whole=whole,
        figures=figures,
        points=[
            point
            for number, point in enumerate(points)
            if number % LISTED == 0 or point.speed == choice.speed
        ],
        job=yaml.safe_dump(job.model_dump(), sort_keys=False, allow_unicode=True),
        machine=environment.machine(gate.threads),
    )
    log.info(f"report: {path}")


def _axes(least: float) -> tuple[Figure, Axes]:
    figure, axes = page.axes_of()
    page.draw_gate(axes, 100 * least)
    page.name_accuracy(axes)
    axes.margins(y=0.15)
    return figure, axes


def _layers(found: Observed, least: float) -> Markup:
    figure, axes = _axes(least)
    values = by_layer(found)
    axes.plot(range(1, len(values) + 1), [100 * value for value in values], "o-", color=TRAIN)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("layer")
    return page.svg(figure)


def _over(key: str, unit: float, points: Sequence[Choice], choice: Choice, least: float) -> Markup:
    """Accuracy over what a text costs in the mean, a point a speed, the chosen one ringed."""
    figure, axes = _axes(least)
    costs = [getattr(point, key) / unit for point in points]
    axes.plot(costs, [100 * point.accuracy for point in points], "o-", color=TRAIN, markersize=3)
    page.ring(axes, getattr(choice, key) / unit, 100 * choice.accuracy)
    axes.set_xlim(left=0)
    what = "layers a text" if key == "mean_layers" else "operations, of all layers' = 1"
    axes.set_xlabel(f"{what}  (a point a speed; ringed: chosen)")
    return page.svg(figure)
