"""The model card: a bundle's README.md, made from its manifest (Mitchell et al. 2019).

It is rewritten with every variant. A person reads it; nothing else does.
"""

from __future__ import annotations

import math
from pathlib import Path

from fleetbert.bundle.manifest import Manifest
from fleetbert.bundle.variants import Variant
from fleetbert.core import task_names

NAME = "README.md"
TEMPLATE = Path(__file__).with_name("card.md.j2")
MOST_LABELS = 50


def card(manifest: Manifest) -> str:
    """Markdown: what the model answers, what was measured of each variant, how to use it."""
    import jinja2  # who only reads bundles needs none

    shape = task_names.SHAPES[manifest.task.name]
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        manifest=manifest,
        tells=shape.tells,
        of_texts=shape.of_texts,
        row=_row,
        most_labels=MOST_LABELS,
    )


def _row(variant: Variant) -> list[str]:
    size = variant.bytes / 1e6
    speed = f"{variant.comparison.speed_ratio:.2f}" if variant.comparison else ""
    rest = [speed, f"{size:.1f}", ", ".join(variant.runs_on)]
    if not variant.accuracy:
        return [variant.name, "", "", "", "", *rest]
    measured = variant.accuracy[0]
    if measured.metric == "accuracy":
        low, high = wilson(measured.accuracy, measured.n)
        figure = f"{measured.accuracy:.3f} ({low:.3f} to {high:.3f})"
    else:
        figure = f"{measured.metric} {measured.accuracy:.3f}"
    drop = measured.drop
    lost = f"{drop.value:+.4f} ({drop.low:+.4f} to {drop.high:+.4f})" if drop else ""
    return [variant.name, measured.data, str(measured.n), figure, lost, *rest]


def wilson(share: float, n: int) -> tuple[float, float]:
    """The 95 % interval of a share of n texts (Wilson 1927)."""
    if not n:
        return 0.0, 1.0
    z = 1.959964
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)
