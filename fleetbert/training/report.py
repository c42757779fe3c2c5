"""report.html: what a run did, in one file that opens without a network.

The sections are made of the run's files, and curves.py draws them. Whatever a run lacks (dev texts,
classes, profile) is left out.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Callable

from fleetbert.core import task_names
from fleetbert.core.quantities import duration, milliseconds, number, percent
from fleetbert.reports import page
from fleetbert.reports.page import Details, HeatMap, Section, Table, Text, Tile
from fleetbert.tasks import FIGURES
from fleetbert.training.curves import Row, draw_answers, draw_curves, draw_server_curves

MOST_CLASSES = 50  # of a table, the worst first where there are more
MOST_CONFUSIONS = 30
# The figures of a parameter server: key, column, unit.
OF_SERVERS = [
    ("memory_mb", "memory", " MB"),
    ("pulls_per_s", "pulls/s", ""),
    ("pushes_per_s", "pushes/s", ""),
    ("latency_ms", "latency", " ms"),
    ("latency_99_ms", "99th percentile", " ms"),
]


def write_report(folder: Path) -> None:
    """Write `folder`/report.html from its summary.json, metrics.jsonl and profile.json.

    A reader sees the old report or the new one. OSError if summary.json cannot be read.
    """
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    rows = _read_rows(folder / "metrics.jsonl")
    config = summary.get("config", {})
    task = config.get("task", {}).get("name", "training")
    dev = {name: v for name, v in (summary.get("dev") or {}).items() if v is not None}  # NaN
    scaled = summary.get("precision", "float32").startswith("float16")
    curves = draw_curves(rows, dev, scaled) + draw_answers(dev, summary.get("calibration", {}))
    best = "no dev texts, so no accuracy"
    if "metric" in dev:
        best = f"best step {number(dev['step'])}, by {dev['metric']}"
    page.write(
        folder / "report.html",
        title=folder.resolve().name,
        kind=task,
        note=f"{task} · {best}",
        sections=[
            Section("", _tiles(summary, dev, config)),
            Section("Over the steps", curves),
            Section(
                f"Classes, on the dev texts at step {number(dev.get('step', 0))}", classes_of(dev)
            ),
            _profile(summary, folder / "profile.json"),
            _servers(summary.get("servers", []), rows),
            _data(summary.get("data", {})),
            page.how_it_was_made(
                config, "Versions", summary.get("versions", {}), *_weights(summary)
            ),
        ],
    )


def _read_rows(path: Path) -> list[Row]:
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        with contextlib.suppress(ValueError):  # a row that a kill cut short
            rows.append(json.loads(line))
    return rows


def _tiles(summary: Row, dev: Row, config: Row) -> list[Tile]:
    """The headline figures: name, value, note."""
    tiles: list[Tile] = []
    if dev:
        shape = task_names.SHAPES.get(config.get("task", {}).get("name", ""))
        unit = shape.counts if shape else "texts"
        place = f"{dev['n']:,} {unit}, step {dev['step']:,}"
        labels = len(dev.get("labels", []))
        occurring = dev.get("macro_f1_classes", labels)
        mean = f"of the {occurring:,} of {labels:,} classes that occur, step {dev['step']:,}"
        for key, name in FIGURES.items():
            if key in dev:
                value = percent(dev[key]) if key == "accuracy" else f"{dev[key]:.4f}"
                some = key == "macro_f1" and occurring < labels
                tiles.append(Tile(f"Dev {name}", value, mean if some else place))
        if "loss" in dev:
            tiles.append(Tile("Dev loss", f"{dev['loss']:.4f}", place))
        if "ece" in dev:
            former = summary["calibration"]["before"]["ece"]
            note = f"{former:.4f} before the temperature was fitted"
            tiles.append(Tile("Dev calibration error", f"{dev['ece']:.4f}", note))
    skipped = summary.get("skipped_steps", 0)
    world = summary.get("world_size", 1)
    ranks = "one process" if world == 1 else f"{world} ranks together"
    resumed, bad = summary.get("resumed_at", 0), summary.get("bad_steps", 0)
    since = f", after step {resumed:,}" if resumed else ""
    left_out = [f"{skipped:,} skipped by GradScaler"] * bool(skipped) + [f"{bad:,} bad"] * bool(bad)
    counts = summary.get("half_operators")
    half = f"; {counts['half']:,} of {counts['all']:,} operators in half" if counts else ""
    known: list[tuple[str, str, Callable[[float], str], str]] = [
        ("Texts/s", "texts_per_s", number, ranks + since),
        ("Tokens/s", "tokens_per_s", number, ranks),
        ("Reader ratio", "reader_ratio", percent, "of step time spent on reading"),
        ("Wall time", "wall_s", duration, "with evaluation and checkpoints" + since),
        ("Steps", "steps", number, ", ".join(left_out)),
        ("World size", "world_size", number, ""),
        ("Device", "device", str, f"{summary.get('precision', '')}{half}"),
    ]
    for name, key, form, note in known:
        if key in summary:
            tiles.append(Tile(name, form(summary[key]), note))
    return tiles


def classes_of(dev: Row) -> list[page.Part]:
    """The confusion matrix, or where classes are many what is most confused; figures by class."""
    classes = dev.get("classes", {})
    if not classes:
        return []
    parts: list[page.Part] = []
    confusions = dev.get("confusions", [])[:MOST_CONFUSIONS]
    if dev.get("confusion") and len(classes) <= MOST_CLASSES:
        note = f"Counts of {dev.get('counted', 'texts')}; colour: share of the row."
        parts.append(HeatMap(dev["labels"], dev["confusion"], note))
    elif confusions:
        more, note = dev.get("confused_pairs", 0), ""
        if more > len(confusions):
            note = f"The most frequent of {number(more)} pairs; summary.json has more."
        pairs = [(truth, predicted, number(count)) for truth, predicted, count in confusions]
        parts.append(Table(["Most confused: true", "predicted", "texts"], pairs, note))
    shown = list(classes.items())[:MOST_CLASSES]
    note = ""
    if len(classes) > len(shown):
        note = f"The {len(shown)} worst of {number(len(classes))} classes; summary.json has all."
    rows = [
        (label, *(f"{scores[name]:.4f}" for name in ("precision", "recall", "f1")),
         number(scores["support"]))
        for label, scores in shown
    ]  # fmt: skip
    parts.append(Table(["class", "precision", "recall", "F1", "support"], rows, note))
    return parts


def _profile(summary: Row, path: Path) -> Section:
    # Without "profile" in the summary, profile.json is an earlier run's.
    if "profile" not in summary:
        return Section("", [])
    profile = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    parts: list[page.Part] = []
    if profile.get("together"):
        columns = ["rank", "reader_cost", "batch_cost", "reader ratio", "steps/s", "ips (texts/s)"]
        ranks = [_profile_row(row) for row in profile.get("ranks", []) if "batch_cost" in row]
        note = "By Paddle's profiler, a step's mean without the first ten steps."
        if profile.get("traces"):
            note += f" Timelines: {', '.join(profile['traces'])}"
        total = _profile_row({"rank": "together", **profile["together"]})
        parts.append(Table([*columns, "tokens/s"], ranks, note, total))
    else:
        note = "There are no figures: Paddle's profiler leaves out the first ten steps."
        parts.append(Text(note, "muted"))
    slow = [
        (
            row["name"],
            number(row["calls"]),
            milliseconds(row["total_ms"] / 1000),
            milliseconds(row["average_ms"] / 1000),
        )
        for row in profile.get("slow_operators", [])
    ]
    if slow:
        table = Table(["operator", "calls", "total", "average"], slow)
        parts.append(Details("Slowest operators", [table]))
    return Section("Profile", parts)


def _profile_row(row: Row) -> list[str]:
    return [
        str(row["rank"]),
        milliseconds(row["reader_cost"]),
        milliseconds(row["batch_cost"]),
        percent(row["reader_ratio"]),
        *(number(row[name]) for name in ("steps_per_s", "texts_per_s", "tokens_per_s")),
    ]


def _servers(servers: list[Row], rows: list[Row]) -> Section:
    parts: list[page.Part] = []
    if servers:
        note = (
            "At the end: memory as it was, requests of the whole run, latency (without the "
            "network) of the last ten seconds."
        )
        cells = [
            [
                str(place),
                *(number(row[key]) + unit if key in row else "" for key, _, unit in OF_SERVERS),
            ]
            for place, row in enumerate(servers)
        ]
        parts.append(Table(["server", *(column for _, column, _ in OF_SERVERS)], cells, note))
    return Section("Servers", [*parts, *draw_server_curves(rows)])


def _data(data: Row) -> Section:
    rows = [
        (
            source,
            counts.get("file", ""),
            *(number(counts[name]) for name in ("texts", "truncated", "skipped_lines")),
        )
        for source, counts in data.items()
    ]
    columns = ["texts from", "file", "texts", "truncated", "skipped lines"]
    return Section("Data", [Table(columns, rows)] if rows else [])


def _weights(summary: Row) -> list[Details]:
    parts = [
        Text(f"{what}: {', '.join(summary[key])}")
        for key, what in (
            ("fresh_weights", "Not in the given weights, started fresh"),
            ("unused_weights", "In the given weights, not needed"),
        )
        if summary.get(key)
    ]
    return [Details("Weights", parts)] if parts else []
