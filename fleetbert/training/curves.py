"""The figures of report.html: curves over the steps, and the answers of the best step."""

from __future__ import annotations

from typing import Any, Dict, Tuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator, ScalarFormatter

from fleetbert.reports import figures, page
from fleetbert.reports.figures import DEV, NICE, STYLE, TRAIN
from fleetbert.tasks import FIGURES

# The figures that have a curve, each with the one that is drawn beside it.
BESIDE = {
    "accuracy": "macro_f1",
    "entity_f1": None,
    "auc": None,
    "spearman": "pearson",
    "map": "mrr",
    "micro_f1": "macro_f1",
}

Row = Dict[str, Any]
Curve = Tuple[np.ndarray, np.ndarray]


def draw_curves(rows: list[Row], best: Row, scaled: bool) -> list[page.Figure]:
    """Draw each curve that the rows have values for. `best`: the metrics of the best step."""
    last = max((row["step"] for row in rows if "step" in row), default=0)
    drawn = []
    with matplotlib.rc_context(STYLE):
        loss, dev_loss = _curve(rows, "loss"), _curve(rows, "dev.loss")
        if len(loss[0]) or len(dev_loss[0]):
            axes = _axes(last, "" if "mse" in best else "nats")
            note = _smoothed_line(axes, loss, label="training")
            _dev_line(axes, dev_loss, best, "dev")
            drawn.append(_figure("Loss", axes, note))
        for key, beside in BESIDE.items():
            line = _curve(rows, f"dev.{key}")
            if not len(line[0]):
                continue
            axes = _axes(last)
            _dev_line(axes, line, best, FIGURES[key])
            if beside is not None:
                other = _curve(rows, f"dev.{beside}")
                _line(axes, other, DEV, label=FIGURES[beside], alpha=0.6, linestyle="--")
            metric = best.get("metric")
            note = f"best by {metric}: step {best['step']:,}" if metric and key != "auc" else ""
            drawn.append(_figure(f"Dev {FIGURES[key]}", axes, note))
        rate = _curve(rows, "lr")
        if len(rate[0]):
            axes = _axes(last)
            _line(axes, rate, TRAIN)
            drawn.append(_figure("Learning rate", axes))
        for key, title, unit, factor in [
            ("ips", "ips", "texts/s", 1),
            ("reader_ratio", "Reader ratio", "%", 100),
        ]:
            steps, values = _curve(rows, key)
            if len(steps):
                axes = _axes(last, unit)
                note = _smoothed_line(axes, (steps, values * factor))
                axes.set_ylim(bottom=0)
                drawn.append(_figure(title, axes, note))
        scale = _curve(rows, "scale")
        if len(scale[0]) and (scaled or np.any(scale[1] != 1.0)):
            axes = _axes(last)
            axes.set_yscale("log", base=2)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
            _line(axes, scale, TRAIN, drawstyle="steps-post")
            drawn.append(_figure("Loss scale", axes))
    return drawn


def draw_answers(best: Row, calibration: Row) -> list[page.Figure]:
    """Draw the best step's answers to the dev texts (`tasks.Task.plots`), and their calibration."""
    with matplotlib.rc_context(STYLE):
        drawn = []
        if best.get("scatter"):
            drawn.append(_scatter(np.array(best["scatter"]), best))
        if best.get("first_places"):
            drawn.append(_first_places(best["first_places"]))
            documents = best["answers_by_relevance"]
            drawn.append(_of_two_kinds("Answers", "answer", documents, "relevant"))
        if best.get("similarities"):
            pairs = best["similarities"]
            drawn.append(_of_two_kinds("Similarities", "cosine of two texts", pairs, "own"))
        for label, curve in best.get("precision_recall", {}).items():
            drawn.append(_precision_recall(label, curve))
        if "after" in calibration:
            drawn.append(_reliability(calibration))
        return drawn


def _reliability(calibration: Row) -> page.Figure:
    """Draw the reliability diagram before and after calibration (Guo et al. 2017, figure 1)."""
    axes = _plain_axes("probability", "share that is right")
    axes.plot([0, 1], [0, 1], color=TRAIN, linewidth=1)
    for when, style in (("before", "--"), ("after", "-")):
        means, shares, _ = np.array(calibration[when]["reliability"]).T
        axes.plot(means, shares, style, color=DEV, marker="o", markersize=2.5, label=when)
    note = f"temperature {calibration['temperature']:.3f}, of {calibration['n']:,} texts"
    return _figure("Probabilities", axes, note)


def _precision_recall(label: str, curve: Row) -> page.Figure:
    """Precision over recall of one label, as its threshold falls."""
    axes = _plain_axes("recall", "precision")
    axes.plot(*np.array(curve["points"]).T, color=DEV)
    axes.set_xlim(0, 1.02)
    axes.set_ylim(0, 1.05)
    return _figure(label, axes, f"average precision {curve['average']:.4f}")


def _scatter(points: np.ndarray, best: Row) -> page.Figure:
    """Draw answers over true values; on the line both are equal."""
    axes = _plain_axes("true", "answer")
    ends = [points.min(), points.max()]
    axes.plot(ends, ends, color=TRAIN, linewidth=1)
    axes.plot(points[:, 0], points[:, 1], "o", color=DEV, markersize=2.5, alpha=0.5)
    note = f"{len(points):,} of {best['n']:,} dev texts, step {best['step']:,}"
    return _figure("Answers", axes, note)


def _first_places(queries: list[int]) -> page.Figure:
    """Draw how many queries have their first relevant document at each place."""
    axes = _plain_axes("place of the first relevant document", "queries")
    axes.bar([*map(str, range(1, len(queries))), "later"], queries, color=DEV, width=0.8)
    note = f"{queries[0] / sum(queries):.1%} of {sum(queries):,} queries have it first"
    return _figure("First relevant documents", axes, note)


def _of_two_kinds(title: str, axis: str, counts: Row, right: str) -> page.Figure:
    """Draw the distributions of `right` and of `others`, each as shares of its kind."""
    axes = _plain_axes(axis, "share")
    for kind, colour in (("others", TRAIN), (right, DEV)):
        shares = np.array(counts[kind]) / max(sum(counts[kind]), 1)
        axes.stairs(shares, counts["bounds"], color=colour, fill=True, alpha=0.5, label=kind)
    note = " and ".join(f"{sum(counts[kind]):,} {kind}" for kind in (right, "others"))
    return _figure(title, axes, note)


def draw_server_curves(rows: list[Row]) -> list[page.Figure]:
    """Draw the figures of parameter servers over the steps."""
    each = "largest of all servers"
    together = "sum of all servers"
    charts = [
        ("Requests", together, "1/s", [("pulls_per_s", "pulls"), ("pushes_per_s", "pushes")]),
        ("Latency", each, "ms", [("latency_ms", "mean"), ("latency_99_ms", "99th percentile")]),
        ("Memory", each, "MB", [("memory_mb", "")]),
        ("Rows of the table", together, "", [("rows", "")]),
    ]
    last = max((row["step"] for row in rows if "step" in row), default=0)
    drawn = []
    with matplotlib.rc_context(STYLE):
        for title, note, unit, lines in charts:
            curves = [(_curve(rows, f"servers.{key}"), label) for key, label in lines]
            if any(len(steps) for (steps, _), _ in curves):
                axes = _axes(last, unit)
                for (curve, label), colour in zip(curves, (TRAIN, DEV)):
                    _line(axes, curve, colour, label=label or None)
                axes.set_ylim(bottom=0)
                drawn.append(_figure(title, axes, note))
    return drawn


def _curve(rows: list[Row], key: str) -> Curve:
    """Return steps and values of the rows that have the key; infinite values become NaN, a gap."""
    pairs = [(row["step"], row[key]) for row in rows if key in row and "step" in row]
    steps, values = np.array(pairs, np.float64).reshape(-1, 2).T
    return steps, np.where(np.isfinite(values), values, np.nan)


def smooth(values: np.ndarray, half: int) -> np.ndarray:
    """Return the moving mean over 2 * half + 1 values, NaN left out."""
    known, window = np.isfinite(values), np.ones(2 * half + 1)
    sums = np.convolve(np.where(known, values, 0.0), window, "same")
    counts = np.convolve(known, window, "same")
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _plain_axes(x: str, y: str) -> Axes:
    axes = figures.axes_of(2.5)[1]
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return axes


def _axes(last: int, unit: str = "") -> Axes:
    """Make axes over the steps up to `last`."""
    axes = _plain_axes("step", unit)
    axes.set_xlim(0, max(last, 1) * 1.02)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=NICE))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    formatter = ScalarFormatter(useOffset=False)
    formatter.set_powerlimits((-3, 5))
    axes.yaxis.set_major_formatter(formatter)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=NICE))
    return axes


def _line(axes: Axes, curve: Curve, colour: str, **style: Any) -> None:
    steps, values = curve
    if len(steps):
        marker = "o" if len(steps) == 1 else None
        axes.plot(steps, values, color=colour, marker=marker, markersize=3, **style)


def _smoothed_line(axes: Axes, curve: Curve, **style: Any) -> str:
    """Draw the rows faintly, and their moving mean above; return a note about it."""
    steps, values = curve
    half = min(max(2, len(steps) // 100), len(steps) // 10)
    if half:
        _line(axes, curve, TRAIN, alpha=0.3, linewidth=0.8)
    _line(axes, (steps, smooth(values, half) if half else values), TRAIN, **style)
    return f"mean of {2 * half + 1:,} rows; faint: single rows" if half else ""


def _dev_line(axes: Axes, curve: Curve, best: Row, label: str) -> None:
    """Draw a line of evaluations, and mark the best one."""
    steps, values = curve
    few: Row = {"marker": "o", "markersize": 3} if len(steps) <= 40 else {}
    if len(steps):
        axes.plot(steps, values, color=DEV, label=label, **few)
    at_best = np.flatnonzero(steps == best.get("step", -1))[-1:]
    figures.ring(axes, steps[at_best], values[at_best], 9, "best" if len(at_best) else None)


def _figure(title: str, axes: Axes, note: str = "") -> page.Figure:
    """Make a figure, with a legend if it has several lines."""
    names = axes.get_legend_handles_labels()[1]
    if len(names) > 1:
        axes.legend(
            loc="lower right",
            bbox_to_anchor=(1, 1),
            ncol=len(names),
            frameon=False,
            borderpad=0,
            fontsize=8,
        )
    figure = axes.figure
    assert isinstance(figure, figures.Drawing)
    return page.Figure(title, figure, note)
