"""report-early-exit-....html: how right each layer's head is; what each `speed` gives and costs."""

from __future__ import annotations

from pathlib import Path
from typing import Mapping, Sequence

import matplotlib
import yaml
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fleetbert import bundle as bundles
from fleetbert import page
from fleetbert.compress import early_exit, paired
from fleetbert.compress.early_exit import Choice, Observed
from fleetbert.page import DEV, NICE, STYLE, TRAIN

TEMPLATE = Path(__file__).with_name("report.html.j2")
LISTED = 5  # every so many of the points of the curve are in the table, and the chosen one


def name(target: str) -> str:
    """The page's file name in the bundle."""
    return f"report-{target}.html"


def by_layer(found: Observed) -> list[float]:
    """Accuracy, 0 to 1, if all texts left after that layer."""
    return [float(value) for value in (found.predicted == found.truth).mean(1)]


def curve(found: Observed, choice: Choice) -> list[Choice]:
    """What all values of speed give with the groups that were chosen; the first lets none leave."""
    speeds = sorted({0.0, choice.speed, *early_exit.SPEEDS})
    return [early_exit.judge(found, choice.ends, speed) for speed in speeds]


def write(
    path: Path,
    found: Observed,
    choice: Choice,
    points: Sequence[Choice],
    *,
    target: str,
    title: str,
    data: str,
    least: float,
    why_not: str | None,
    drop: bundles.Drop | None,
    job: Mapping[str, object],
    machine: Mapping[str, object],
) -> None:
    """Write the page. least: the accuracy that the gate asks for; why_not: said first of a variant
    that was not added, for leaving early does not pay; drop: that the gate found."""
    whole = points[0].mean_flops
    with matplotlib.rc_context(STYLE):
        figures = [
            ("Accuracy after each layer, if all texts left there", _layers(found, least)),
            ("Accuracy and layers", _over("mean_layers", 1.0, points, choice, least)),
            ("Accuracy and operations", _over("mean_flops", whole, points, choice, least)),
        ]
    page.write(
        path,
        TEMPLATE,
        title=title,
        target=target,
        data=data,
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
        job=yaml.safe_dump(job, sort_keys=False, allow_unicode=True),
        machine=machine,
    )


def _axes(least: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(5.2, 3.0), layout="constrained")
    axes = figure.add_subplot()
    axes.axhline(100 * least, color=DEV, linewidth=1, linestyle="--", label="gate")
    axes.set_ylabel("accuracy, %")
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=NICE))
    axes.margins(y=0.15)
    return figure, axes


def _layers(found: Observed, least: float) -> Markup:
    figure, axes = _axes(least)
    values = by_layer(found)
    axes.plot(range(1, len(values) + 1), [100 * value for value in values], "o-", color=TRAIN)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("layer  (dashed: gate)")
    return page.svg(figure)


def _over(key: str, unit: float, points: Sequence[Choice], choice: Choice, least: float) -> Markup:
    """Accuracy over what a text costs in the mean, a point a speed, the chosen one ringed."""
    figure, axes = _axes(least)
    costs = [getattr(point, key) / unit for point in points]
    axes.plot(costs, [100 * point.accuracy for point in points], "o-", color=TRAIN, markersize=3)
    axes.plot(
        getattr(choice, key) / unit,
        100 * choice.accuracy,
        "o",
        markersize=11,
        markerfacecolor="none",
        color=DEV,
    )
    axes.set_xlim(left=0)
    what = "layers a text" if key == "mean_layers" else "operations, of all layers' = 1"
    axes.set_xlabel(f"{what}  (a point a speed; ringed: chosen; dashed: gate)")
    return page.svg(figure)
