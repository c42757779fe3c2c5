"""The `fleetbert` command: parses, calls the room that does the work, prints what it says.

Rooms are imported by the commands that need them, so that `fleetbert --help` takes no time.
"""

from __future__ import annotations

import argparse
import os
from types import ModuleType
from typing import Callable, NamedTuple

from fleetbert import __version__, errors
from fleetbert import answer_command as ask
from fleetbert.bench import command as bench_command
from fleetbert.compress import command as quantize_command
from fleetbert.compress import export_command
from fleetbert.compress.distill import command as distill_command
from fleetbert.deploy.inference import command as serve_command
from fleetbert.doctor import command as doctor_command
from fleetbert.export import command as import_command
from fleetbert.launch import command as launch_command
from fleetbert.train import checkpoint_command
from fleetbert.train import command as train_command

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
    parser = argparse.ArgumentParser(
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
    "train": _of("train BERT", train_command),
    "launch": _of("start and watch the processes of a job on this machine", launch_command),
    "ask": Command("answer a few texts for reading", ask.ASK, ask.add_ask, ask.run_ask),
    "evaluate": Command(
        "measure a bundle on a labelled table", ask.EVALUATE, ask.add_evaluate, ask.run_evaluate
    ),
    "predict": Command("answer texts with a bundle", ask.PREDICT, ask.add_predict, ask.run_predict),
    "export": _of("add another form of the model to a bundle", export_command),
    "import": _of("make a bundle of a finished classifier", import_command),
    "quantize": _of("add a smaller, faster variant to a bundle", quantize_command),
    "checkpoint": _of("list, check and remove the checkpoints of a run", checkpoint_command),
    "distill": _of("teach a smaller model what a trained one knows", distill_command),
    "serve": _of("answer over HTTP and gRPC", serve_command),
    "doctor": _of("look at this machine and try everything on it", doctor_command),
    "bench": _of("measure your own bundle, server or training", bench_command),
}


if __name__ == "__main__":
    main()
