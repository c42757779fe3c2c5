"""The page of `fleetbert bench infer`: its tables and plots in one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Sequence

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure

from fleetbert import page
from fleetbert.bench import infer
from fleetbert.page import DEV, INK, STYLE, TRAIN

TEMPLATE = Path(__file__).with_name("infer.html.j2")
MARKS = "osD^vPX*"
LINES = ("-", "--", "-.", ":")
# Tokens of the rows that are drawn over batch sizes.
DRAWN_LENGTH = 128


def write(path: str | Path, report: dict[str, Any]) -> None:
    """Write the page of a report of `infer.bench`."""
    with matplotlib.rc_context(STYLE):
        bars = _bars(report) if report["engines"] else None
        plots = []
        if any(found["accuracy"] is not None for found in report["engines"].values()):
            plots.append(("Accuracy beside speed", "sorted texts", _scatter(report)))
        if report["shapes"]:
            lengths = {cell["length"] for cell in report["shapes"]}
            length = min(lengths, key=lambda length: abs(length - DRAWN_LENGTH))
            by_batch = _over(report, "batch", "length", length)
            by_length = _over(report, "length", "batch", 1)
            plots += [
                ("Texts a second by rows in a batch", f"rows of {length} tokens", by_batch),
                ("Milliseconds of one text by its tokens", "a batch of one row", by_length),
            ]
    page.write(
        Path(path).resolve(),
        TEMPLATE,
        report=report,
        orders=infer.ORDERS,
        rows=infer.table_rows(report) if report["engines"] else [],
        bars=bars,
        plots=plots,
        shapes=infer.shape_tables(report),
        notes=infer.notes(report),
    )


def _colour(name: str) -> str:
    return DEV if any(name.startswith(peer) for peer in infer.PEERS.values()) else TRAIN


def _bars(report: dict[str, Any]) -> Markup:
    engines = report["engines"]
    orders = [o for o in infer.ORDERS if any(f["order"] == o for f in engines.values())]
    names = list(dict.fromkeys(name.rpartition(", ")[0] for name in engines))
    figure = Figure(figsize=(9, 0.8 + 0.3 * len(names)), layout="constrained")
    axes = figure.subplots(1, max(1, len(orders)), sharey=True, squeeze=False)[0]
    for axis, order in zip(axes, orders):
        values = [engines.get(f"{n}, {order}", {}).get("texts_per_s", 0.0) for n in names]
        bars = axis.barh(names, values, color=[_colour(name) for name in names], height=0.65)
        labels = [f"{value:,.0f}" if value else "" for value in values]
        axis.bar_label(bars, labels, padding=3, fontsize=8, color=INK)
        axis.set_title(order, fontsize=9)
        axis.margins(x=0.25)
        axis.grid(False)
        axis.set_xticks([])
    axes[0].invert_yaxis()
    return page.svg(figure)


def _scatter(report: dict[str, Any]) -> Markup:
    figure = Figure(figsize=(4.5, 3.4), layout="constrained")
    axis = figure.subplots()
    for name, found in report["engines"].items():
        if found["order"] == "sorted" and found["accuracy"] is not None:
            speed, accuracy = found["texts_per_s"], found["accuracy"]
            axis.plot(speed, accuracy, "o", color=_colour(name))
            label = name.rpartition(", ")[0]
            axis.annotate(
                label, (speed, accuracy), (4, 4), textcoords="offset points", fontsize=7, color=INK
            )
    axis.set_xlabel("texts/s")
    axis.set_ylabel("accuracy")
    axis.margins(x=0.3, y=0.15)
    return page.svg(figure)


def _over(report: dict[str, Any], along: str, fixed: str, value: int) -> Markup:
    """Lines of each engine over batch sizes or lengths."""
    cells = [cell for cell in report["shapes"] if cell[fixed] == value]
    figure = Figure(figsize=(4.5, 3.6), layout="constrained")
    axis = figure.subplots()
    for number, name in enumerate(dict.fromkeys(cell["engine"] for cell in cells)):
        mine = [cell for cell in cells if cell["engine"] == name]
        x = [cell[along] for cell in mine]
        y = [1000 * c["batch"] / c["ms"] if along == "batch" else c["ms"] for c in mine]
        axis.plot(
            x,
            y,
            LINES[number // 2 % len(LINES)],
            marker=MARKS[number % len(MARKS)],
            markersize=3.5,
            linewidth=1.1,
            color=_colour(name),
            label=name,
        )
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    ticks: Sequence[int] = sorted({cell[along] for cell in cells})
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.set_xlabel("rows" if along == "batch" else "tokens")
    figure.legend(loc="outside lower center", ncols=2, fontsize=7, frameon=False)
    return page.svg(figure)
