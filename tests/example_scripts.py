"""The scripts of docs/examples, run as a reader starts them."""

from __future__ import annotations

from pathlib import Path
from typing import Mapping

import fresh

EXAMPLES = Path(__file__).parent.parent / "docs" / "examples"
TWO_RANKS = ("-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--backend", "gloo")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # sums have one order in any ranks


def run(folder: Path, name: str, *words: object, environment: Mapping[str, str] = {}) -> str:
    """What the script prints; `name` may be an option of Python's."""
    script = name if name.startswith("-") else str(EXAMPLES / name)
    done = fresh.run(script, *words, cwd=folder, PYTHONIOENCODING="utf-8", **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_two_ranks(folder: Path, name: str, *words: object) -> str:
    """What the first rank prints."""
    run(folder, *TWO_RANKS, EXAMPLES / name, *words, environment=ONE_THREAD)
    return (folder / "log" / "workerlog.0").read_text(encoding="utf-8")


def losses(said: str) -> list[float]:
    """Of the first steps, at most six."""
    [told] = [line for line in said.splitlines() if line.startswith("losses: ")]
    return [float(word) for word in told.partition(" ... ")[0].split()[1:]]
