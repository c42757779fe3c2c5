"""Train BERT: `python launch/train.py --help`, alone or under paddle.distributed.launch."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run from a checkout, uninstalled

from fleetbert.cli import train as command
from fleetbert.core import errors

if __name__ == "__main__":
    errors.run(command.main)
