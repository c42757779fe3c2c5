"""Add smaller, faster variants to a bundle and compare them: see compress.md."""

from __future__ import annotations

import argparse

import fleetbert


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", help="what training wrote, e.g. output/classify/bundle")
    parser.add_argument("texts", help="texts like those to come: the training table will do")
    parser.add_argument("gate", help="labelled table that variants are measured on")
    parser.add_argument("--max-drop", type=float, default=0.005, help="accuracy that may be lost")
    parser.add_argument("--methods", nargs="+", default=["dynamic", "static"])
    given = parser.parse_args()

    print(f"{'variant':<24} {'accuracy':>8} {'texts/s':>10} {'MB':>6}")
    for number, method in enumerate(given.methods):
        needed = {"calibration": given.texts} if method == "static" else {}
        try:
            small = fleetbert.quantize(
                given.bundle, method=method, gate=given.gate, max_drop=given.max_drop, **needed
            )
        except fleetbert.GateFailed as error:
            print(f"{method}: not added: {error}")
            continue
        if number == 0:
            line("float32", small.float32_accuracy, 1.0, small.float32_size)
        line(small.name, small.accuracy, small.speed_ratio, small.size)


def line(name: str, accuracy: float, ratio: float, size: int) -> None:
    print(f"{name:<24} {accuracy:>8.4f} {ratio:>8.2f} x {size / 1e6:>6.1f}")


if __name__ == "__main__":
    main()
