"""The options and the start of the commands that train."""

from __future__ import annotations

import argparse
import os
from typing import Callable, Mapping, TypeVar

from fleetbert import config
from fleetbert.compat import environment
from fleetbert.config import recipes
from fleetbert.config.command_line import Parser, add_keys
from fleetbert.core import extras, stopping
from fleetbert.launch import ranks
from fleetbert.training import finished

Job = TypeVar("Job", bound=config.Config)


def add_job(parser: argparse.ArgumentParser, schemas: Mapping[str, type[config.Section]]) -> None:
    """schemas: see `add_keys`."""
    add_config(parser)
    add_keys(parser, schemas)


def add_config(parser: argparse.ArgumentParser) -> None:
    """--config FILE and --recipe NAME, either of them as `config`. Without one every key has its
    default."""
    of_job = parser.add_mutually_exclusive_group()
    of_job.add_argument("--config", metavar="FILE", default=os.devnull, help="YAML file of the job")
    of_job.add_argument(
        "--recipe",
        dest="config",
        type=lambda name: str(recipes.path(name)),
        metavar="NAME",
        help="in place of a file: a job that `fleetbert recipes` lists",
    )


def read(arguments: argparse.Namespace, schema: type[Job]) -> Job | None:
    """Read the job, supervise it where there are ranks, and import Paddle. None: it is finished."""
    stopping.expect()
    extras.need("train", "training")
    job = config.load_as(schema, arguments.config, arguments.overrides)
    is_alone = int(os.environ.get("PADDLE_TRAINERS_NUM", "1")) == 1
    if is_alone and job.strategy.name != "parameter_server" and finished.is_finished(job):
        return None
    supervise(job)
    environment.import_paddle()
    return job


def supervise(job: config.Config | config.Quantize) -> None:
    """See `ranks.supervised`."""
    ranks.supervised(job.strategy.hang_timeout, resumes=job.trainer.resume == "auto")


def parse(
    argv: list[str], description: str, add: Callable[[argparse.ArgumentParser], None]
) -> argparse.Namespace:
    """For the scripts in launch/: the overrides may stand anywhere among the options."""
    parser = Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add(parser)
    parser.add_argument("--debug", action="store_true", help="show the stack of an error")
    return parser.parse_intermixed_args(argv)
