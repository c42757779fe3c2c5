"""A table that is cached takes no memory of its own. `make endurance` has the large one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "measure_memory.py"


def measure(lines: int, folder: Path, *words: str) -> dict[str, float]:
    command = [sys.executable, SCRIPT, str(lines), str(folder), *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_ten_times_the_lines_take_the_same_memory(tmp_path):
    few, many = (measure(lines, tmp_path)["above_start"] for lines in (5_000, 50_000))
    held = measure(50_000, tmp_path, "data.cache=none")["above_start"]
    assert many < few + 10
    assert held > many + 40  # or the test sees nothing
