"""How reports draw: in the page's colours, as elements of the page.

A figure is drawn in the colours below, inside `matplotlib.rc_context(STYLE)`, and `svg` gives it
those of page.css, light or dark.
"""

from __future__ import annotations

import io
import re
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

# Drawn in these, and then replaced by the page's own colours, light or dark.
INK, GRID, TRAIN, DEV = "#0a0b01", "#0a0b02", "#0a0b03", "#0a0b04"
PAGE_COLOURS = {INK: "muted", GRID: "line", TRAIN: "train", DEV: "dev"}
NICE = [1, 2, 2.5, 5, 10]  # between ticks
Drawing = Figure  # of matplotlib; a page.Figure has a title too
STYLE = {
    "svg.fonttype": "none",  # text stays text: small, and in the reader's fonts
    "svg.hashsalt": "fleetbert",  # the same run gives the same bytes
    "font.size": 9,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "figure.facecolor": "none",
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "text.color": INK,
    "lines.linewidth": 1.6,
    "path.simplify_threshold": 0.5,  # pixels that a line may be off: 100,000 points become 2,000
}


def axes_of(height: float = 3.0) -> tuple[Figure, Axes]:
    """A figure with one pair of axes; inches."""
    figure = Figure(figsize=(5.2, height), layout="constrained")
    return figure, figure.add_subplot()


def name_accuracy(axes: Axes, metric: str = "accuracy") -> None:
    """Accuracy in per cent, or a hundred times another metric, goes up."""
    axes.set_ylabel("accuracy, %" if metric == "accuracy" else f"{metric} × 100")
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=NICE))


def draw_gate(axes: Axes, least: float) -> None:
    """The value that has to be reached."""
    axes.axhline(least, color=DEV, linewidth=1, linestyle="--")
    across = axes.get_yaxis_transform()  # x in parts of the width, y in the data's unit
    style: dict[str, Any] = {"ha": "right", "va": "top", "color": DEV, "fontsize": 8}
    axes.text(0.99, least, "gate", transform=across, **style)


def ring(axes: Axes, x: Any, y: Any, size: float = 11, label: str | None = None) -> None:
    """A circle around points."""
    axes.plot(x, y, "o", markersize=size, markerfacecolor="none", color=DEV, label=label)


def svg(figure: Figure) -> Markup:
    """The figure as an element of the page: its colours, no namespace, no metadata, no ids that
    two figures would share."""
    stream = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context(STYLE):
        FigureCanvasSVG(figure).print_svg(stream, metadata=nothing)  # `savefig` draws twice
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    for colour, name in PAGE_COLOURS.items():
        text = text.replace(colour, f"var(--{name})")
    return Markup(text)
