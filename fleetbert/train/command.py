"""The command line of training, for `launch/train.py` and `fleetbert train`."""

from __future__ import annotations

import argparse
from typing import Callable, TypeVar

from fleetbert import config
from fleetbert.compat import environment
from fleetbert.launch import ranks
from fleetbert.train import stopping

Job = TypeVar("Job", bound=config.Config)

DESCRIPTION = """\
Train BERT as a YAML file says: one process, or many under paddle.distributed.launch.

  fleetbert train --config configs/sst2.yaml [key=value ...]
  python -m paddle.distributed.launch --nproc_per_node 2 --max_restart 3 \\
      launch/train.py --config configs/sst2.yaml [key=value ...]

With trainer.resume: auto, a rank that is killed or hangs has all ranks started again from the
newest whole checkpoint, up to --max_restart times. launch/train.py is the same command, as a script
for launchers.
"""


def add_arguments(
    parser: argparse.ArgumentParser, schema: type[config.Section] = config.Config
) -> None:
    parser.epilog = "keys:\n" + config.help_text(schema)
    parser.add_argument("--config", required=True, metavar="FILE", help="YAML file of the job")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes to the config")


def run(arguments: argparse.Namespace) -> None:
    job = read(arguments, config.Config)
    from fleetbert.train import job as training  # with Paddle, which wants its environment first

    training.run(job)


def read(arguments: argparse.Namespace, schema: type[Job]) -> Job:
    """The job, with Paddle imported; of ranks, only under a supervisor."""
    stopping.expect()
    job = config.load_as(schema, arguments.config, arguments.overrides)
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
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add(parser)
    parser.add_argument("--debug", action="store_true", help="show the stack of an error")
    return parser.parse_intermixed_args(argv)


def main(argv: list[str]) -> None:
    run(parse(argv, DESCRIPTION, add_arguments))
