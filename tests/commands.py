"""Commands of `fleetbert` in this process."""

from __future__ import annotations

import pytest

from fleetbert.cli import main as cli


def call(*words: object) -> int:
    """The exit code of `fleetbert WORDS`."""
    with pytest.raises(SystemExit) as ended:
        cli.main([*map(str, words)])
    return ended.value.code or 0
