"""Commands of `fleetbert` in this process."""

from __future__ import annotations

import signal

import pytest

from fleetbert.cli import main as cli


def call(*words: object) -> int:
    """The exit code of `fleetbert WORDS`, which hears of signals no longer than it runs: a fixture
    of a module may call it, and `process_as_before` is of single tests."""
    heard = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with pytest.raises(SystemExit) as ended:
        cli.main([*map(str, words)])
    for number, handler in heard.items():
        if handler is not None:
            signal.signal(number, handler)
    return ended.value.code or 0
