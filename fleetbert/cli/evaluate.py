"""The command line of `fleetbert evaluate`."""

from __future__ import annotations

import argparse
import sys

from fleetbert.cli.bundle_options import add_columns, add_model, columns, load
from fleetbert.core import strict_json

DESCRIPTION = """\
Measure a bundle on a labelled table: the metrics of its task (accuracy, Spearman's correlation,
...), loss and speed; for classifiers also precision, recall and F1 of each class.

  fleetbert evaluate --bundle output/quickstart/bundle --data dev.tsv

The table is TSV or CSV with a header, or JSONL. Its columns are text_a (or text), label and, for
pairs, text_b; options name other columns. Named entities are in JSONL or in CoNLL's columns.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument(
        "--data", required=True, metavar="FILE", help="labelled table: .tsv, .csv, .jsonl, .conll"
    )
    parser.add_argument(
        "--on-bad-line",
        choices=("stop", "skip"),
        default="stop",
        help="stop at an invalid row or an unknown label with the line number (default), or skip "
        "and count such rows",
    )
    add_columns(parser, labelled=True)
    parser.add_argument(
        "--json", action="store_true", help="print one line of JSON instead of a table"
    )


def run(arguments: argparse.Namespace) -> None:
    from fleetbert.engines import evaluate

    model = load(arguments)
    report = evaluate.evaluate(model, arguments.data, columns(arguments))
    if arguments.json:
        where = {key: getattr(arguments, key) for key in ("bundle", "variant", "data")}
        ascii_only = sys.stdout.encoding.lower() != "utf-8"
        print(strict_json.dumps({**where, **report}, ensure_ascii=ascii_only))
    else:
        print(evaluate.format_report(report))
