"""Compare ways to train the heads of early exit, at equal operations: see exits.md."""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from pathlib import Path

import fleetbert
from fleetbert import bundle as bundles

VARIANT = "early-exit-float32"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", help="what training wrote; it is not changed")
    parser.add_argument("texts", help="texts like those to come: the training table will do")
    parser.add_argument("dev", help="labelled table that accuracy is measured on")
    parser.add_argument(
        "--layers", type=int, nargs="+", required=True, help="the last of each group"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--flops", type=float, nargs="+", default=[0.5, 0.3], help="shares of all")
    parser.add_argument("--set", nargs="*", default=[], metavar="key=value", help="as of distill")
    given = parser.parse_args()

    keys: dict[str, object] = {"sources": ["float32"], "distill.layers": given.layers}
    keys.update(word.split("=", 1) for word in given.set)
    print(f"{'weighting':<12}", *(f"{share:>6.0%} of FLOPs" for share in given.flops))
    for weighting in ("none", "uncertainty"):
        found = []
        for seed in range(given.seeds):
            keys.update({"distill.weighting": weighting, "seed": seed})
            curve = measure(given.bundle, given.texts, given.dev, keys)
            found.append([accuracy_at(curve, share) for share in given.flops])
        cells = []
        for values in zip(*found):
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            cells.append(f"{statistics.mean(values):.4f} ± {spread:.4f}")
        print(f"{weighting:<12}", *cells)


def measure(bundle: str, texts: str, dev: str, keys: dict[str, object]) -> list[tuple]:
    """(share of the operations, accuracy) at ever higher speeds."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "bundle"
        shutil.copytree(bundle, copy)
        fleetbert.early_exit(copy, texts, gate=dev, max_drop=1.0, **keys)
        points = bundles.read(copy).variant(VARIANT).by_speed
    most = max(point.mean_flops for point in points)
    return [(point.mean_flops / most, point.accuracy) for point in points]


def accuracy_at(curve: list[tuple], share: float) -> float:
    """Between the two points beside it; of the nearest where it lies outside."""
    curve = sorted(curve)
    for (left, below), (right, above) in zip(curve, curve[1:]):
        if left <= share <= right:
            return below + (above - below) * (share - left) / max(right - left, 1e-12)
    return curve[0][1] if share < curve[0][0] else curve[-1][1]


if __name__ == "__main__":
    main()
