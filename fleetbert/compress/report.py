"""quantize-report.html: accuracy against speed and size of a bundle's variants, and what
quantization does to the layers of the one that was just made, or what pruning took from them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Mapping, NamedTuple, Sequence

import matplotlib
import numpy as np
import yaml
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from fleetbert import bundle as bundles
from fleetbert.compat import environment
from fleetbert.compress import sensitivity
from fleetbert.compress.gate import too_few
from fleetbert.compress.texts import Feeds
from fleetbert.compress.work import Work
from fleetbert.reports import page
from fleetbert.reports.page import DEV, INK, NICE, STYLE, TRAIN
from fleetbert.tasks.metrics import FIGURES

log = logging.getLogger(__name__)

NAME = "quantize-report.html"
TEMPLATE = Path(__file__).with_name("report.html.j2")
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
    others = [v for v in bundle.manifest.variants if v.name != made.name]
    found: list[Point] = []
    for variant in [*others, made]:
        accuracy = next((a for a in variant.accuracy if a.data_sha256 == sha256), None)
        its = variant.comparison
        if accuracy is None or accuracy.float32_accuracy is None or its is None:
            continue
        if not found:
            same = {"texts_per_s": its.float32_texts_per_s, "max_logit_difference": 0.0}
            ones = {"speed_ratio": 1.0, "size_ratio": 1.0}
            whole = {"accuracy": accuracy.float32_accuracy, "drop": None}
            float32 = accuracy.model_copy(update=whole), its.model_copy(update={**same, **ones})
            found.append(Point("float32", *float32, megabytes))
        added = variant is not made or made in bundle.manifest.variants
        found.append(Point(variant.name, accuracy, its, its.size_ratio * megabytes, added))
    return found


def of_layers(variant: bundles.Variant, what: str) -> dict[str, float]:
    """What the manifest tells of quantized layers by their weights: `output_errors` (token errors),
    `weight_errors` or `thresholds` of inputs; nothing, where the variant has no such field."""
    told: dict[str, float] = getattr(variant, what, {})
    return told


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
    found = points(bundle, made, str(accuracy.data_sha256))
    groups = sensitivity.groups(work.source.program)
    parts = {name: part for part, members in groups.items() for name in members}
    errors, weight_errors, thresholds = (
        of_layers(made, what) for what in ("output_errors", "weight_errors", "thresholds")
    )
    layers = work.source.layers
    inputs = list(layers.run(texts))
    int8 = made if isinstance(made, bundles.Int8Variant) else bundles.Int8Variant(name="none")
    smoothed = made.smoothed if isinstance(made, bundles.OnnxInt8Variant) else int8.smoothed
    search = int8.search
    pruning = made.pruning if isinstance(made, bundles.ProgramVariant) else None
    machine = environment.machine(work.gate.threads)
    metric = accuracy.metric
    shown = FIGURES.get(metric, metric)
    title_of = shown[0].upper() + shown[1:]
    with matplotlib.rc_context(STYLE):
        overview = [
            (f"{title_of} and {what}", _scatter(found, f"{what}_ratio", label, max_drop, metric))
            for what, label in (
                ("speed", "texts/s, times float32's"),
                ("size", "bytes, of float32's"),
            )
        ]
        curves, removed = [], []
        if search:
            curves = [
                ("Each part alone in int8", _alone(search)),
                ("Mixes", _mixes(search, metric)),
            ]
        if pruning:
            label = "importance removed (change of the loss, to first order)"
            removed = [
                ("Attention heads", _heads(pruning)),
                ("By part", _bars(pruning.lost_importance, TRAIN, label)),
            ]
        shapes = []
        for name in most_changed(made, MOST_DRAWN):
            x = np.concatenate([batch[name].ravel() for batch in inputs])
            drawn = _layer(layers.parameters[name], x, thresholds.get(name))
            shapes.append((f"{parts.get(name, '')} · {name}", drawn))
    page.write(
        path,
        TEMPLATE,
        title=f"{root.parent.name}/{root.name}",
        failed=failed,
        data=work.gate.data,
        metric=shown,
        caution=too_few(accuracy, max_drop),
        max_drop=max_drop,
        made=made.name,
        points=found,
        overview=overview,
        search=search,
        curves=curves,
        removed=removed,
        counts=pruning,
        layers=shapes,
        clipped=[(parts.get(name, ""), name, found) for name, found in int8.clipped.items()],
        smoothed=[(parts.get(name, ""), name, found) for name, found in smoothed.items()],
        worst=[
            (parts.get(n, ""), n, errors[n], weight_errors.get(n), thresholds.get(n))
            for n in most_changed(made, MOST_LISTED)
        ],
        job=yaml.safe_dump(work.job.model_dump(), sort_keys=False, allow_unicode=True),
        # The machine's figures name fleetbert and Python themselves.
        versions={name: v for name, v in made.versions.items() if name not in machine},
        machine=machine,
    )
    log.info(f"report: {path}")
    return path


def _scatter(found: Sequence[Point], key: str, label: str, max_drop: float, metric: str) -> Markup:
    """The metric in per cent over a ratio, each point named."""
    figure, axes = page.axes_of()
    if found:
        page.draw_gate(axes, 100 * (found[0].accuracy.accuracy - max_drop))
    values = [100 * point.accuracy.accuracy for point in found]
    gap = 0.1 * max([max(values) - min(values), 100 * max_drop, 0.1] if values else [1.0])
    lowest = float("-inf")
    for point in sorted(found, key=lambda point: point.accuracy.accuracy):
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
    page.name_accuracy(axes, metric)
    return page.svg(figure)


def _alone(search: bundles.SearchResult) -> Markup:
    """How much each group in int8 alone changes the logits; those left in float32 in orange."""
    errors = {name: mix.logit_error for name, mix in search.alone.items()}
    colours = [DEV if name in search.chosen.float32 else TRAIN for name in errors]
    return _bars(errors, colours, "change of the logits (root of mean square)")


def _mixes(search: bundles.SearchResult, metric: str) -> Markup:
    """The metric of the mixes over their part in int8, the chosen one ringed."""
    figure, axes = page.axes_of()
    mixes = sorted(search.mixes, key=lambda mix: mix.int8_share)
    shares = [0.0, *(100 * mix.int8_share for mix in mixes)]
    values = [100 * search.float32_accuracy, *(100 * mix.accuracy for mix in mixes)]
    page.draw_gate(axes, 100 * search.least_accuracy)
    axes.plot(shares, values, "o-", color=TRAIN, markersize=4, linewidth=1)
    page.ring(axes, 100 * search.chosen.int8_share, 100 * search.chosen.accuracy)
    axes.margins(y=0.25)
    axes.set_xlabel("multiplications in int8, %  (ringed: chosen)")
    page.name_accuracy(axes, metric)
    return page.svg(figure)


def _heads(pruning: bundles.Pruning) -> Markup:
    """The importance of each head beside the most important one of its layer, the darker the more;
    crossed: removed."""
    values = np.array(pruning.importance_of_heads)
    values = values / np.maximum(values.max(1, keepdims=True), 1e-30)
    figure, axes = page.axes_of(max(1.6, 0.8 + 0.22 * len(values)))
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
    return page.svg(figure)


def _bars(values: Mapping[str, float], colours: str | list[str], label: str) -> Markup:
    """A bar to the right for each, by name."""
    figure, axes = page.axes_of(max(2.0, 0.6 + 0.19 * len(values)))
    axes.barh(list(values), list(values.values()), color=colours, height=0.65)
    axes.invert_yaxis()
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(label)
    return page.svg(figure)


def _layer(weight: np.ndarray, x: np.ndarray, threshold: float | None) -> Markup:
    """Histograms of a weight and of its input, with the input's threshold."""
    figure = Figure(figsize=(5.2, 2.3), layout="constrained")
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
    return page.svg(figure)
