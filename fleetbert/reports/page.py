"""What the HTML reports share: one file that opens without a network, drawn in the page's colours.

A figure is drawn in the colours below, inside `matplotlib.rc_context(STYLE)`, and `svg` makes it
an element of the page whose colours are those of page.css, light or dark.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fleetbert.core.files import replacing

CSS = Path(__file__).with_name("page.css")

# Drawn in these, and then replaced by the page's own colours, light or dark.
INK, GRID, TRAIN, DEV = "#0a0b01", "#0a0b02", "#0a0b03", "#0a0b04"
PAGE_COLOURS = {INK: "muted", GRID: "line", TRAIN: "train", DEV: "dev"}
NICE = [1, 2, 2.5, 5, 10]  # between ticks
STYLE = {
    "svg.fonttype": "none",  # text stays text: small, and in the reader's fonts
    "svg.hashsalt": "fleetbert",  # the same run gives the same bytes
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
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


def write(path: Path, template: Path, **names: Any) -> None:
    """Render the Jinja template with `names` into `path`; a reader sees the old page or the new."""
    environment = jinja2.Environment(
        autoescape=True,  # labels and file names are the user's
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, percent=percent, milliseconds=milliseconds)
    environment.globals["css"] = Markup(CSS.read_text(encoding="utf-8"))
    html = environment.from_string(template.read_text(encoding="utf-8")).render(**names)
    with replacing(path) as stream:
        stream.write(html.encode("utf-8"))


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
    figure.savefig(stream, format="svg", transparent=True, metadata=nothing)
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    for colour, name in PAGE_COLOURS.items():
        text = text.replace(colour, f"var(--{name})")
    return Markup(text)


def number(value: float) -> str:
    """Four digits that count, thousands apart."""
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def milliseconds(seconds: float) -> str:
    return f"{number(1000.0 * seconds)} ms"
