"""The command line of `fleetbert bench`. What is measured is imported when it is named."""

from __future__ import annotations

import argparse
import importlib

DESCRIPTION = """\
Measure your own bundle, server or training on this machine.

  fleetbert bench infer --bundle output/sst2/bundle --data dev.tsv    speed, accuracy
  fleetbert bench serve --bundle output/sst2/bundle --data dev.tsv    the server under load
  fleetbert bench train --config configs/sst2.yaml --beside data.batching=pack    training steps

The candidates run by turns in every round, in an order that rotates. Compare the median, over the
rounds, of the ratios within a round. Stop other programs first; the report says if the machine was
busy. `fleetbert bench infer --help` explains the options, and so do the other two.
"""
KINDS = ("infer", "serve", "train")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=KINDS)
    parser.add_argument("options", nargs=argparse.REMAINDER, help="see `fleetbert bench WHAT -h`")


def run(arguments: argparse.Namespace) -> None:
    """Parse the rest as `fleetbert.bench.WHAT` says, measure, print the report."""
    # here, so that other commands start without NumPy
    measure = importlib.import_module("fleetbert.bench.measure")
    module = importlib.import_module(f"fleetbert.bench.{arguments.what}")
    parser = argparse.ArgumentParser(
        f"fleetbert bench {arguments.what}",
        description=module.DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    parser.add_argument(
        "--json", type=measure.output, metavar="FILE", help="also write all figures to this file"
    )
    parser.add_argument("--markdown", action="store_true", help="print tables as Markdown")
    module.run(parser.parse_args(arguments.options))
