"""The picture of the README, of what `infer --orders sorted` has measured: each of ours and each
peer at its best setting, with its texts/s and accuracy.

  python tests/benchmarks/picture.py output/benchmarks/<date>-infer.json docs/images/speed.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Dict

from matplotlib import figure

Json = Dict[str, Any]
OURS, PEERS = "#1f77b4", "#aaaaaa"


def draw(engines: dict[str, Json], target: Path) -> None:
    """engines: as the benchmark's JSON has them, by "<engine>, <order>"."""
    rows = sorted(
        (row["texts_per_s"], label.rpartition(",")[0], row["accuracy"])
        for label, row in engines.items()
        if row["order"] == "sorted"
    )
    speeds, names, accuracies = zip(*rows)
    drawn = figure.Figure(figsize=(8, 0.42 * len(rows) + 0.7), layout="constrained")
    axes = drawn.add_subplot()
    colors = [PEERS if "(" in name else OURS for name in names]
    told = [f"{speed:,.0f} (accuracy {share:.3f})" for speed, share in zip(speeds, accuracies)]
    axes.bar_label(axes.barh(names, speeds, color=colors), told, padding=4, fontsize=9)
    axes.margins(x=0.4)
    axes.set_xlabel("texts/s on two cores, MiniLM on SST-2 (blue: fleetbert's variants)")
    axes.spines[["top", "right"]].set_visible(False)
    drawn.savefig(target)


if __name__ == "__main__":
    report = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    draw(report["engines"], Path(sys.argv[2]))
