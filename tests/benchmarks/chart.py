"""Draws the README's chart: accuracy over texts a second of each variant.

    python tests/benchmarks/chart.py docs/benchmarks/2026-11-25-infer.md docs/images/speed.svg

The figures are those of the page's first table: a variant a row, its `accuracy` and its texts a
second in `sorted` batches.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from matplotlib import pyplot, rcParams


class Row(NamedTuple):
    """accuracy: 0 to 1; texts_per_s: in sorted batches."""

    name: str
    accuracy: float
    texts_per_s: float


def read(page: Path) -> list[Row]:
    lines = page.read_text(encoding="utf-8").splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("|"))
    table = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    header, _, *rows = table
    accuracy, speed = header.index("accuracy"), header.index("sorted")
    return [Row(row[0], _number(row[accuracy]), _number(row[speed])) for row in rows]


def draw(rows: list[Row], path: Path) -> None:
    rcParams["svg.hashsalt"] = "fleetbert"  # the same file each time
    rcParams["svg.fonttype"] = "none"  # text, not outlines
    most = max(row.texts_per_s for row in rows)
    figure, axes = pyplot.subplots(figsize=(8, 3.6))
    for row in rows:
        peer = "ONNX Runtime" in row.name
        axes.plot(
            row.texts_per_s,
            100 * row.accuracy,
            marker="s" if peer else "o",
            color="#888888" if peer else "#1f6feb",
            markersize=9,
        )
        name = "at a higher speed" if row.name.startswith("the same") else row.name.split("`, ")[0]
        right = row.texts_per_s > most / 2
        axes.annotate(
            name.strip("`"),
            (row.texts_per_s, 100 * row.accuracy),
            (-9 if right else 9, -4),
            textcoords="offset points",
            ha="right" if right else "left",
        )
    axes.set_xlim(0, 1.1 * most)
    axes.margins(y=0.25)
    axes.set_xlabel("texts a second (SST-2, MiniLM, 2 threads, sorted batches)")
    axes.set_ylabel("accuracy, %")
    axes.grid(color="#dddddd")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def _number(cell: str) -> float:
    """The first number of a cell: 0.8727 of "0.8727 to 0.8750"."""
    return float(cell.split()[0].replace(",", ""))


if __name__ == "__main__":
    draw(read(Path(sys.argv[1])), Path(sys.argv[2]))
