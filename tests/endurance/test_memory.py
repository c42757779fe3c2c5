"""Millions of lines train in the memory of thousands, but for their order: four bytes a line.
Millions of rows are answered in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

SCRIPT = Path(__file__).parent.parent / "train" / "measure_memory.py"
# A process begins with the peak of the one that starts it: a small one stands between.
PEAK = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""
# Of `predict`. Fewer are done sooner: FLEETBERT_ROWS=3000000 make endurance
ROWS = int(os.environ.get("FLEETBERT_ROWS", 10_000_000))


@pytest.mark.timeout(3600)
def test_five_million_lines(tmp_path, capsys):
    found = []
    for lines in (50_000, 5_000_000):
        command = [sys.executable, SCRIPT, str(lines), str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout.splitlines()[-1]))
        with capsys.disabled():
            print(f"\n{done.stdout.splitlines()[-1]}")
    assert found[1]["above_start"] < found[0]["above_start"] + 4 * 5_000_000 / 2**20 + 15


def peak_of_predict(rows: int, bundle: Path, folder: Path) -> float:
    """Megabytes that `fleetbert predict` takes at most. Every tenth row has no text."""
    (folder / "in").mkdir(parents=True)
    for first in range(0, rows, 1_000_000):
        numbers = range(first, min(rows, first + 1_000_000))
        texts = [f"word{number % 30}" if number % 10 else None for number in numbers]
        table = pa.table({"id": numbers, "text": texts})
        pq.write_table(table, folder / "in" / f"{first}.parquet", row_group_size=100_000)
    words = ["--bundle", bundle, "--threads", "1", "--input", folder / "in"]
    command = [sys.executable, "-m", "fleetbert.cli", "predict", *map(str, words)]
    command = [sys.executable, "-c", PEAK, *command, "--output", str(folder / "out")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0
    files = (folder / "out").glob("*.parquet")
    assert sum(pq.read_metadata(file).num_rows for file in files) == rows * 9 // 10
    return int(done.stdout) / 1024


@pytest.mark.timeout(7200)
def test_ten_million_rows_are_answered(tiny_bundle, tmp_path, capsys):
    """10 million rows take no more than 10 thousand, and 100 MB: a window of texts and answers,
    and the row groups that are read ahead."""
    peaks = {}
    for rows in (10_000, 1_000_000, ROWS):
        peaks[rows] = peak_of_predict(rows, tiny_bundle, tmp_path / str(rows))
        with capsys.disabled():
            print(f"\n{rows:,} rows: {peaks[rows]:.0f} MB")
    assert max(peaks.values()) < peaks[10_000] + 100
