"""docs/api.md is what the docstrings say, and all that is offered is on it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import fleetbert

ROOT = Path(__file__).parent.parent.parent


def test_the_page_is_up_to_date():
    script = ROOT / ".ci" / "api-page"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_page_has_every_name():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for name in fleetbert.__all__:
        assert name == "__version__" or f"### {name}\n" in page or f"**{name}**(" in page, name
