"""The keys of a job on a command line: words key=value, --help, --help-all, and options that are
meant as keys."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, Mapping, Sequence

from pydantic import BaseModel

from fleetbert.config.help import common_text, help_text
from fleetbert.config.names import hint
from fleetbert.core.errors import UserError


class Parser(argparse.ArgumentParser):
    """Answers an unknown option with the key that was meant, once `add_keys` was called."""

    schemas: Sequence[type[BaseModel]] = ()

    # As argparse has it: also what subcommands, `parse_args` and `parse_intermixed_args` call.
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = [_below_home(word) for word in (sys.argv[1:] if args is None else args)]
        if self.schemas:
            self._refuse_unknown_options(words)
        return super().parse_known_args(words, namespace)

    def _refuse_unknown_options(self, words: Sequence[str]) -> None:
        options = [option for option in self._option_string_actions if option.startswith("--")]
        for number, word in enumerate(words):
            name, sign, value = word.partition("=")
            if word == "--":
                return
            if not name.startswith("--") or any(option.startswith(name) for option in options):
                continue
            if not sign:
                following = "".join(words[number + 1 : number + 2])
                value = "" if following.startswith("--") or "=" in following else following
            meant = hint(name[2:], self.schemas, value or None)
            where = f"{name}: is no option, and keys are set by words key=value"
            raise UserError(where + (meant or "; --help-all lists them"))


def _below_home(word: str) -> str:
    """Expand `~` in `--option=~/path`, as a shell does in `--option ~/path`."""
    option, sign, value = word.partition("=")
    path = os.path.expanduser(value)  # noqa: PTH111  leaves alone what is no path of a user
    return f"{option}{sign}{path}" if option.startswith("--") else word


def add_keys(parser: argparse.ArgumentParser, schemas: Mapping[str, type[BaseModel]]) -> None:
    """Let a command take words key=value, have its --help show the keys that people set, and
    --help-all all. schemas: by command, as in `common_for`, or "command kind" of several."""
    kinds = [command.partition(" ")[2] for command in schemas]
    titles = [f"keys of kind {kind}" if kind else "keys" for kind in kinds]
    parser.epilog = "\n\n".join(
        f"{title} that people set most (--help-all lists all):\n{common_text(schema, command)}"
        for title, (command, schema) in zip(titles, schemas.items())
    )
    parts = zip(titles, schemas.values())
    everything = "\n\n".join(f"{title}:\n{help_text(schema)}" for title, schema in parts)
    parser.add_argument(
        "--help-all", action=_ShowAll, nargs=0, const=everything, help="list all keys and exit"
    )
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="changes to the config"
    )
    if isinstance(parser, Parser):
        parser.schemas = list(schemas.values())


class _ShowAll(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"{parser.format_usage()}\n{self.const}")
        parser.exit()
