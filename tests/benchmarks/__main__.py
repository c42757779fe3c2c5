"""`python tests/benchmarks NAME ...`, in the environment of `make venv`; see harness.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import harness  # noqa: E402
from fleetbert.core import errors  # noqa: E402

if __name__ == "__main__":
    errors.run(harness.main, sys.argv[1:])
