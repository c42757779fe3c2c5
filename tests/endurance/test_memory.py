"""5 million lines train in the memory of 50 thousand: four bytes a line more, their order."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "train" / "measure_memory.py"


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
