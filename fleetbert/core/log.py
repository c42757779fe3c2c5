"""How the commands speak: plain sentences on stderr.

Every module logs to its own `logging.getLogger(__name__)`. Importing fleetbert configures nothing:
a program that uses it decides where these lines go. `errors.run` calls `start` for the commands,
and `fleetbert serve` replaces that by its own format (deploy/inference/ops/logs.py).
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Mapping

ROOT = logging.getLogger("fleetbert")


class _Stderr(logging.Handler):
    """Writes to what `sys.stderr` is at that moment, and flushes."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except (OSError, ValueError):  # of stderr; what a signal raises meanwhile passes
            self.handleError(record)


def start(level: int = logging.INFO) -> None:
    """Show the lines of fleetbert's loggers from `level` on; a second call changes the level only.

    Where a job has several ranks, a line begins with "rank 1: ".
    """
    if not any(isinstance(handler, _Stderr) for handler in ROOT.handlers):
        handler = _Stderr()
        handler.setFormatter(logging.Formatter(f"{_rank(os.environ)}%(message)s"))
        ROOT.addHandler(handler)
        # Importing paddle.distributed gives the root logger a handler (`get_logger` without
        # a name): every line would be printed twice.
        ROOT.propagate = False
    ROOT.setLevel(level)


def stop() -> None:
    """Leave fleetbert's loggers to the root logger."""
    ROOT.handlers[:] = [each for each in ROOT.handlers if not isinstance(each, _Stderr)]
    ROOT.propagate = True
    ROOT.setLevel(logging.NOTSET)


def _rank(environ: Mapping[str, str]) -> str:
    rank = environ.get("PADDLE_TRAINER_ID")  # a parameter server has none
    several = environ.get("PADDLE_TRAINERS_NUM", "1") != "1"
    return f"rank {rank}: " if rank and several else ""
