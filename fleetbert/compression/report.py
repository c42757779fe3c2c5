"""quantize-report.html: accuracy against speed and size of a bundle's variants, and what
quantization does to the layers of the one that was just made, or what pruning took from them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Callable, Mapping, NamedTuple, Sequence

import matplotlib
import numpy as np
from matplotlib.ticker import MaxNLocator, NullLocator

from fleetbert import bundle as bundles
from fleetbert.compat import environment
from fleetbert.compression import sensitivity
from fleetbert.compression.gate import too_few
from fleetbert.compression.texts import Feeds
from fleetbert.compression.work import Work
from fleetbert.core.quantities import number, percent
from fleetbert.reports import figures, page
from fleetbert.reports.figures import DEV, INK, NICE, STYLE, TRAIN, Drawing
from fleetbert.reports.page import Figure, Section, Table, Text
from fleetbert.tasks import FIGURES

log = logging.getLogger(__name__)

NAME = "quantize-report.html"
# Of the layers with the largest token error.
MOST_LISTED = 10
MOST_DRAWN = 3
BINS = 100


class Point(NamedTuple):
    """A variant on one table; megabytes: of its files; added: it is in the bundle."""

    name: str
    accuracy: bundles.Accuracy
    comparison: bundles.Comparison
    megabytes: float
    added: bool = True


def points(bundle: bundles.Bundle, made: bundles.Variant, sha256: str) -> list[Point]:
    """float32 and all variants that were measured on the table with that hash; `made` is the one
    of this run, which need not be in the bundle."""
    megabytes = bundle.variant("float32").bytes / 1e6
    others = [v for v in bundle.manifest.variants if v.name not in ("float32", made.name)]
    measured: list[Point] = []
    for variant in [*others, made]:
        accuracy = next((a for a in variant.accuracy if a.data_sha256 == sha256), None)
        its = variant.comparison
        if accuracy is None or accuracy.float32_accuracy is None or its is None:
            continue
        if not measured:
            same = {"texts_per_s": its.float32_texts_per_s, "max_logit_difference": 0.0}
            ones = {"speed_ratio": 1.0, "size_ratio": 1.0}
            whole = {"accuracy": accuracy.float32_accuracy, "drop": None}
            float32 = accuracy.model_copy(update=whole), its.model_copy(update={**same, **ones})
            measured.append(Point("float32", *float32, megabytes))
        added = variant is not made or made in bundle.manifest.variants
        measured.append(Point(variant.name, accuracy, its, its.size_ratio * megabytes, added))
    return measured


def of_layers(variant: bundles.Variant, what: str) -> dict[str, float]:
    """What the manifest tells of quantized layers by their weights: `output_errors` (token errors),
    `weight_errors` or `thresholds` of inputs; nothing, where the variant has no such field."""
    values: dict[str, float] = getattr(variant, what, {})
    return values


def most_changed(variant: bundles.Variant, most: int) -> list[str]:
    """The weights of the layers with the largest token error, the worst first."""
    errors = of_layers(variant, "output_errors")
    return sorted(errors, key=lambda name: -errors[name])[:most]


def write(
    work: Work,
    bundle: bundles.Bundle,
    made: bundles.Variant,
    texts: Sequence[Feeds],
    failed: str | None,
) -> Path:
    """Write the page. made: the variant, which need not be in the bundle; texts: of which its
    layers' values are drawn; failed: what the gate said of it, None if it was added."""
    path = Path(work.job.report) if work.job.report else bundle.root / NAME
    root, max_drop = bundle.root.resolve(), work.gate.max_drop
    accuracy = made.accuracy[0]
    metric = accuracy.metric
    groups = sensitivity.groups(work.source.program)
    parts = {name: part for part, members in groups.items() for name in members}
    machine = environment.machine(work.gate.threads)
    # The machine's figures name fleetbert and Python themselves.
    versions = {name: v for name, v in made.versions.items() if name not in machine}
    about = f"{FIGURES.get(metric, metric)} on {work.gate.data}"
    limit = f"at most {max_drop} may be lost against float32"
    with matplotlib.rc_context(STYLE):
        sections = [
            Section("", [Text(failed, "card")] if failed else []),
            _variants(points(bundle, made, str(accuracy.data_sha256)), max_drop, metric),
            _removed(made),
            _smoothed(made, parts),
            _worst(made, parts, work, texts),
        ]
    page.write(
        path,
        title=f"{root.parent.name}/{root.name}",
        kind="quantization",
        note=" · ".join(filter(None, [about, limit, too_few(accuracy, max_drop)])),
        sections=[
            *sections,
            page.how_it_was_made(
                work.job.model_dump(), "Versions and machine", {**versions, **machine}
            ),
        ],
    )
    log.info(f"report: {path}")
    return path


def _variants(points: Sequence[Point], max_drop: float, metric: str) -> Section:
    shown = FIGURES.get(metric, metric)
    name = shown[0].upper() + shown[1:]
    ratios = {"speed": "texts/s, times float32's", "size": "bytes, of float32's"}
    columns = [
        "variant",
        shown,
        "drop (95 %)",
        "texts/s",
        "times float32's",
        "MB",
        "of float32's",
        "logits within",
        "in the bundle",
    ]
    note = (
        "Each variant was measured in turns with float32, by the engine that serves it, in a run "
        "of its own."
    )
    return Section(
        "Variants",
        [
            *(
                Figure(
                    f"{name} and {what}", _scatter(points, f"{what}_ratio", label, max_drop, metric)
                )
                for what, label in ratios.items()
            ),
            Table(columns, [_row(point) for point in points], note),
        ],
    )


def _row(point: Point) -> list[str]:
    accuracy, comparison = point.accuracy, point.comparison
    assert accuracy.float32_accuracy is not None  # see `points`
    drop = f"{accuracy.float32_accuracy - accuracy.accuracy:.4f}"
    if accuracy.drop:
        drop += f" ({accuracy.drop.low:.4f} to {accuracy.drop.high:.4f})"
    return [
        point.name,
        f"{accuracy.accuracy:.4f}",
        drop,
        number(comparison.texts_per_s),
        f"{comparison.speed_ratio:.2f}",
        f"{point.megabytes:.1f}",
        f"{comparison.size_ratio:.3f}",
        f"{comparison.max_logit_difference:.3f}",
        "yes" if point.added else "no",
    ]


def _removed(made: bundles.Variant) -> Section:
    pruning = made.pruning if isinstance(made, bundles.ProgramVariant) else None
    if pruning is None:
        return Section("", [])
    label = "importance removed (change of the loss, to first order)"
    heads, units, layers = pruning.heads, pruning.feed_forward, pruning.kept_heads
    return Section(
        "Pruning: what was removed",
        [
            Figure("Attention heads", _heads(pruning)),
            Figure("By part", _bars(pruning.lost_importance, TRAIN, label)),
            Text(
                f"{sum(map(bool, layers))} of {len(layers)} layers stay. Each layer keeps "
                f"{heads[1]} of {heads[0]} attention heads and {units[1]} of {units[0]} "
                "feed-forward units."
            ),
        ],
    )


def _smoothed(made: bundles.Variant, parts: Mapping[str, str]) -> Section:
    kinds = (bundles.OnnxInt8Variant, bundles.Int8Variant)
    smoothed = made.smoothed if isinstance(made, kinds) else {}
    return _by_layer(
        f"Inputs of {made.name} whose channels are divided by smoothing scales (SmoothQuant)",
        parts,
        smoothed,
        ["exponent"],
        lambda layer: [str(layer.exponent)],
        "Chosen on calibration texts; of all layers that read the same input together.",
    )


def _by_layer(
    title: str,
    parts: Mapping[str, str],
    layers: Mapping[str, Any],
    columns: Sequence[str],
    cells: Callable[[Any], Sequence[str]],
    note: str,
) -> Section:
    """A table of what was changed at layers: part of the network, weight, `columns` with the
    `cells` of each, and the error of a token before and after. parts, layers: by weight."""
    rows = [
        (
            parts.get(name, ""),
            name,
            *cells(layer),
            percent(layer.former_error),
            percent(layer.error),
        )
        for name, layer in layers.items()
    ]
    columns = ["part", "weight", *columns, "token error before", "token error"]
    return Section(title, [Table(columns, rows, note)] if rows else [])


def _worst(
    made: bundles.Variant, parts: Mapping[str, str], work: Work, texts: Sequence[Feeds]
) -> Section:
    """The layers with the largest token error, and the values of a few of them."""
    errors, weight_errors, thresholds = (
        of_layers(made, what) for what in ("output_errors", "weight_errors", "thresholds")
    )
    rows = [
        (
            parts.get(name, ""),
            name,
            percent(errors[name]),
            percent(weight_errors[name]) if name in weight_errors else "",
            number(thresholds[name]) if name in thresholds else "",
        )
        for name in most_changed(made, MOST_LISTED)
    ]
    columns = ["part", "weight", "token error", "weight error", "input's threshold"]
    note = (
        "Token error: relative output error per token, given float32's inputs; root of the mean "
        "square over the tokens of a few of the texts, without padding. Inputs are cut at the "
        "threshold."
    )
    title = f"Layers of {made.name} with the largest token error"
    if not rows:
        return Section(title, [])
    layers = work.source.layers
    inputs = list(layers.run(texts))
    drawn = []
    for name in most_changed(made, MOST_DRAWN):
        x = np.concatenate([batch[name].ravel() for batch in inputs])
        figure = _layer(layers.parameters[name], x, thresholds.get(name))
        about = "values in float32; dashed: threshold"
        drawn.append(Figure(f"{parts.get(name, '')} · {name}", figure, about))
    return Section(title, [Table(columns, rows, note), *drawn])


def _scatter(
    points: Sequence[Point], key: str, label: str, max_drop: float, metric: str
) -> Drawing:
    """The metric in per cent over a ratio, each point named."""
    figure, axes = figures.axes_of()
    if points:
        figures.draw_gate(axes, 100 * (points[0].accuracy.accuracy - max_drop))
    values = [100 * point.accuracy.accuracy for point in points]
    gap = 0.1 * max([max(values) - min(values), 100 * max_drop, 0.1] if values else [1.0])
    lowest = float("-inf")
    for point in sorted(points, key=lambda point: point.accuracy.accuracy):
        x, y = getattr(point.comparison, key), 100 * point.accuracy.accuracy
        axes.plot(
            x,
            y,
            "o",
            markersize=8,
            color=TRAIN if point.added else DEV,
            markerfacecolor=TRAIN if point.added and point.name != "float32" else "none",
        )
        lowest = max(y, lowest + gap)  # names never lie on each other
        axes.annotate(
            point.name + ("" if point.added else " (not added)"),
            (x, lowest),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
        )
    axes.margins(x=0.5, y=0.35)
    axes.set_xlim(left=0)
    axes.set_xlabel(label)
    figures.name_accuracy(axes, metric)
    return figure


def _heads(pruning: bundles.Pruning) -> Drawing:
    """The importance of each head beside the most important one of its layer, the darker the more;
    crossed: removed."""
    values = np.array(pruning.importance_of_heads)
    values = values / np.maximum(values.max(1, keepdims=True), 1e-30)
    figure, axes = figures.axes_of(max(1.6, 0.8 + 0.22 * len(values)))
    axes.pcolormesh(*map(np.arange, values.shape[::-1]), values, cmap="Blues", vmin=0)
    axes.invert_yaxis()
    axes.grid(visible=False)
    for layer, kept in enumerate(pruning.kept_heads):
        gone = np.setdiff1d(np.arange(values.shape[1]), kept)
        axes.plot(gone, np.full(len(gone), layer), "x", color=DEV)
    axes.set_xlabel("head  (crossed: removed)")
    axes.set_ylabel("layer")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _bars(values: Mapping[str, float], colours: str | list[str], label: str) -> Drawing:
    """A bar to the right for each, by name."""
    figure, axes = figures.axes_of(max(2.0, 0.6 + 0.19 * len(values)))
    axes.barh(list(values), list(values.values()), color=colours, height=0.65)
    axes.invert_yaxis()
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(label)
    return figure


def _layer(weight: np.ndarray, x: np.ndarray, threshold: float | None) -> Drawing:
    """Histograms of a weight and of its input, with the input's threshold."""
    figure = Drawing(figsize=(5.2, 2.3), layout="constrained")
    both = ("weights", weight, TRAIN), ("input", x, DEV)
    for place, (label, values, colour) in enumerate(both, 1):
        counts, edges = np.histogram(values, BINS)
        axes = figure.add_subplot(1, 2, place)
        axes.stairs(counts, edges, fill=True, color=colour, alpha=0.7)
        axes.set_yscale("log")
        axes.yaxis.set_minor_locator(NullLocator())  # they take longest to draw
        axes.set_xlabel(label)
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=NICE))
        if label == "input" and threshold is not None:
            for side in (-threshold, threshold):
                if edges[0] <= side <= edges[-1]:
                    axes.axvline(side, color=INK, linewidth=1, linestyle="--")
    figure.axes[0].set_ylabel("values")
    return figure
