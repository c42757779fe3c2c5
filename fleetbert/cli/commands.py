"""The words of the `fleetbert` command.

Each command imports the package that does its work, so that `fleetbert --help` starts fast.
"""

from __future__ import annotations

import argparse
import re
from typing import Any

from fleetbert import __version__
from fleetbert.cli import (
    ask,
    audit,
    bench,
    checkpoint,
    compress,
    distill,
    doctor,
    evaluate,
    export,
    import_model,
    label,
    launch,
    predict,
    quantize,
    recipes,
    select,
    train,
    tune,
)
from fleetbert.config.command_line import Parser
from fleetbert.deploy.inference import command as serve

EPILOG = """\
A bundle is the folder that training writes: the model, its vocabulary, its labels, and variants
of it (float32, onnx, ...). `fleetbert <command> --help` says more, with an example.
--debug with any command shows the whole stack of an error.
"""


def run(argv: list[str]) -> int | None:
    """Run the command that the words name; returns its exit code."""
    parser = Parser(
        "fleetbert",
        description="Train BERT with PaddlePaddle on one machine or many, compress it, serve it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"fleetbert {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="command", required=True)
    for name, (summary, command) in COMMANDS.items():
        subparser = subparsers.add_parser(
            name,
            help=summary,
            description=command.DESCRIPTION,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    arguments, rest = parser.parse_known_args(argv)
    of_command = subparsers.choices[arguments.command]
    if hasattr(arguments, "overrides"):
        rest = _take_keys(arguments, of_command, rest)
    if rest and all("=" in word and not word.startswith("-") for word in rest):
        of_command.error(f"{arguments.command} has no keys: {' '.join(rest)}")
    if rest:
        of_command.error(f"unrecognized arguments: {' '.join(rest)}")
    return arguments.run(arguments)


def _take_keys(
    arguments: argparse.Namespace, parser: argparse.ArgumentParser, rest: list[str]
) -> list[str]:
    """Let words key=value stand anywhere, before a command's other words too, while argparse takes
    them in one place; returns what of `rest` is no key."""
    names = [action.dest for action in parser._get_positional_actions()]
    names = [name for name in names if name != "overrides" and hasattr(arguments, name)]
    words = [*(getattr(arguments, name) for name in names), *arguments.overrides, *rest]
    keys = [word for word in words if re.match(r"[^-./][^=]*=", word)]
    others = [word for word in words if word not in keys]
    if len(others) == len(names):
        vars(arguments).update(zip(names, others), overrides=keys)
        return []
    arguments.overrides += [word for word in rest if word in keys]
    return [word for word in rest if word not in keys]


# The line of `fleetbert --help`, and the module: its DESCRIPTION, add_arguments and run.
COMMANDS: dict[str, tuple[str, Any]] = {
    "train": ("train BERT", train),
    "tune": ("search for the settings that train best", tune),
    "launch": ("start and watch the processes of a job on this machine", launch),
    "ask": ("answer a few texts for reading", ask),
    "evaluate": ("measure a bundle on a labelled table", evaluate),
    "predict": ("answer texts with a bundle", predict),
    "label": ("label texts by the names of the labels", label),
    "export": ("add another form of the model to a bundle", export),
    "import": ("make a bundle of a finished classifier", import_model),
    "quantize": ("add a smaller, faster variant to a bundle", quantize),
    "audit": ("find wrong labels and other faults of a table", audit),
    "select": ("choose which texts to label next", select),
    "compress": ("make the model that meets a budget of time and size", compress),
    "checkpoint": ("list, check and remove the checkpoints of a run", checkpoint),
    "distill": ("teach a smaller model what a trained one knows", distill),
    "serve": ("answer over HTTP and gRPC", serve),
    "recipes": ("list the jobs that come with fleetbert, or print one", recipes),
    "doctor": ("check this machine and try the main features on it", doctor),
    "bench": ("measure your own bundle, server or training", bench),
}
