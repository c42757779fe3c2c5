"""`python -m fleetbert.deploy.inference` is `fleetbert serve`."""

from __future__ import annotations

import argparse

from fleetbert.config.command_line import Parser
from fleetbert.core import errors
from fleetbert.deploy.inference import command


def main(argv: list[str]) -> None:
    parser = Parser(
        "python -m fleetbert.deploy.inference",
        description=command.DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_arguments(parser)
    command.run(parser.parse_args(argv))


if __name__ == "__main__":
    errors.run(main)
