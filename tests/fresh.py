"""A Python of its own, for what a process does when it starts or ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

DEADLINE = 900  # seconds, against hanging only


def run(
    *words: object, cwd: Path | None = None, stdin: str | None = None, **variables: str | None
) -> subprocess.CompletedProcess[str]:
    """A Python that ended, with other variables; one that is None is not set."""
    environ = {name: value for name, value in {**os.environ, **variables}.items() if value}
    command = [sys.executable, *map(str, words)]
    how = {"capture_output": True, "text": True, "timeout": DEADLINE}
    return subprocess.run(command, cwd=cwd, input=stdin, env=environ, **how)


def python(code: str, *words: object, **how: Any) -> subprocess.CompletedProcess[str]:
    """One that ran `code`, as `run` has it."""
    return run("-c", code, *words, **how)
