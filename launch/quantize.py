"""Quantize a bundle: `python launch/quantize.py --help`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run from a checkout, uninstalled

from fleetbert.cli import quantize as command
from fleetbert.core import errors

if __name__ == "__main__":
    errors.run(command.main)
