"""A Python of its own, for what a process does when it starts or ends."""

from __future__ import annotations

import os
import subprocess
import sys


def python(code: str, *words: str, **variables: str | None) -> subprocess.CompletedProcess[str]:
    """A process that ran `code`, with other variables; one that is None is not set."""
    environ = {name: value for name, value in {**os.environ, **variables}.items() if value}
    return subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, env=environ
    )
