"""The `fleetbert` command: parses, calls the room that does the work, prints what it says.

Rooms are imported by the commands that need them, so that `fleetbert --help` takes no time.
"""

from __future__ import annotations

import argparse
import os
from types import ModuleType
from typing import Callable, NamedTuple

from fleetbert import __version__
from fleetbert.cli import (
    ask,
    bench,
    checkpoint,
    distill,
    doctor,
    evaluate,
    export,
    import_model,
    launch,
    predict,
    quantize,
    recipes,
    train,
)
from fleetbert.config.command_line import Parser
from fleetbert.core import errors
from fleetbert.deploy.inference import command as serve

EPILOG = """\
A bundle is the folder that training writes: the model, its vocabulary, its labels, and variants
of it (float32, onnx, ...). `fleetbert <command> --help` says more, with an example.
--debug with any command shows the whole stack of an error.
"""


class Command(NamedTuple):
    """A subcommand: one line for the list, its --help text, its arguments, what it runs."""

    summary: str
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int | None]


def main(argv: list[str] | None = None) -> None:
    """Entry point; exits with 0, 2 (user error), 130 (Ctrl-C) or 141 (the reader went away)."""
    errors.run(_dispatch, argv)


def _dispatch(argv: list[str]) -> int | None:
    parser = Parser(
        "fleetbert",
        description="Train BERT with PaddlePaddle on one machine or many, compress it, serve it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"fleetbert {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="command", required=True)
    for name, command in COMMANDS.items():
        subparser = subparsers.add_parser(
            name,
            help=command.summary,
            description=command.description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    arguments = parser.parse_args([_below_home(word) for word in argv])
    return arguments.run(arguments)


def _below_home(word: str) -> str:
    """`--option=~/path` as a shell would give `--option ~/path`."""
    option, sign, value = word.partition("=")
    path = os.path.expanduser(value)  # noqa: PTH111  leaves alone what is no path of a user
    return f"{option}{sign}{path}" if option.startswith("--") else word


def _of(summary: str, room: ModuleType) -> Command:
    return Command(summary, room.DESCRIPTION, room.add_arguments, room.run)


COMMANDS = {
    "train": _of("train BERT", train),
    "launch": _of("start and watch the processes of a job on this machine", launch),
    "ask": _of("answer a few texts for reading", ask),
    "evaluate": _of("measure a bundle on a labelled table", evaluate),
    "predict": _of("answer texts with a bundle", predict),
    "export": _of("add another form of the model to a bundle", export),
    "import": _of("make a bundle of a finished classifier", import_model),
    "quantize": _of("add a smaller, faster variant to a bundle", quantize),
    "checkpoint": _of("list, check and remove the checkpoints of a run", checkpoint),
    "distill": _of("teach a smaller model what a trained one knows", distill),
    "serve": _of("answer over HTTP and gRPC", serve),
    "recipes": _of("list the jobs that come with fleetbert, or print one", recipes),
    "doctor": _of("look at this machine and try everything on it", doctor),
    "bench": _of("measure your own bundle, server or training", bench),
}
