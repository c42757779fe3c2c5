"""Progress bars: of tqdm, on stderr, or a notebook's."""

from __future__ import annotations

import sys
from typing import Any

from tqdm.auto import tqdm

IN_NOTEBOOK = any(base.__module__ == "tqdm.notebook" for base in tqdm.__mro__)


def watched() -> bool:
    """Whether a bar is drawn over itself; elsewhere, as in a log file, each update is a line."""
    return IN_NOTEBOOK or sys.stderr.isatty()


def bar(**options: Any) -> tqdm[Any]:
    """A bar with tqdm's options, which is updated seldom where nobody watches."""
    interval = 0.5 if watched() else 10.0
    return tqdm(file=sys.stderr, mininterval=interval, maxinterval=interval, **options)
