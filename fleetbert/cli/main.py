"""The entry point of the `fleetbert` command."""

from __future__ import annotations

from fleetbert.core import errors, stopping


def main(argv: list[str] | None = None) -> None:
    """Exits with 0, 2 (user error), 130 (Ctrl-C), 141 (the reader went away) or 143 (SIGTERM)."""
    errors.run(_run, argv)


def _run(argv: list[str]) -> int | None:
    stopping.expect("start the same command again")  # commands that resume expect it anew
    from fleetbert.cli import commands  # half a second, in which signals may come too

    return commands.run(argv)
