"""The command line of training, for `launch/train.py` and `fleetbert train`."""

from __future__ import annotations

import argparse
import signal
import sys
from typing import Callable, TypeVar

from fleetbert import config
from fleetbert.errors import Stopped
from fleetbert.train import keeper

Job = TypeVar("Job", bound=config.Config)

DESCRIPTION = """\
Train BERT as a YAML file says: one process, or many under paddle.distributed.launch.

  python launch/train.py --config configs/sst2.yaml [key=value ...]
  python -m paddle.distributed.launch --nproc_per_node 2 --max_restart 3 \\
      launch/train.py --config configs/sst2.yaml [key=value ...]

With trainer.resume: auto, a rank that is killed or hangs has all ranks started again from the
newest whole checkpoint, up to --max_restart times. `fleetbert train` is the first of these.
"""


def add_arguments(
    parser: argparse.ArgumentParser, schema: type[config.Config] = config.Config
) -> None:
    parser.epilog = "keys:\n" + config.help_text(schema)
    parser.add_argument("--config", required=True, metavar="FILE", help="YAML file of the job")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes to the config")


def run(arguments: argparse.Namespace) -> None:
    """Read the job and train it."""

    def trainer() -> Callable[[config.Config], object]:
        from fleetbert.train import job  # with Paddle, which wants its environment first

        return job.run

    run_kept(arguments, config.Config, trainer)


def run_kept(
    arguments: argparse.Namespace,
    schema: type[Job],
    trainer: Callable[[], Callable[[Job], object]],
) -> None:
    """Read the job and call what `trainer` imports with it; of ranks, under a keeper."""
    expect_sigterm()
    job = config.load_as(schema, arguments.config, arguments.overrides)
    keep_rank(job)

    from fleetbert.compat import environment

    environment.import_paddle()
    expect_sigterm()  # Paddle's import put a handler of its own there, which shows a stack

    train = trainer()
    expect_sigterm()  # and PaddleNLP's took it away
    train(job)


def expect_sigterm() -> None:
    """What SIGTERM does while nothing is trained: before the first step and after the last one."""

    def stop(*_: object) -> None:
        raise Stopped("SIGTERM: no step is lost; the same command goes on from there")

    signal.signal(signal.SIGTERM, stop)


def keep_rank(job: config.Config | config.Quantize) -> None:
    """Under paddle.distributed.launch: become the keeper of a rank, and in the rank itself, which
    runs the same command again, give signs of life."""
    if keeper.is_needed():
        restarts = keeper.max_restart() if job.trainer.resume == "auto" else 0
        sys.exit(keeper.keep(job.strategy.hang_timeout, restarts))
    if keeper.is_kept():
        keeper.give_signs_of_life()


def main(argv: list[str]) -> None:
    """Parse `argv` and run; the overrides may stand anywhere among the options."""
    parser = argparse.ArgumentParser(
        description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--debug", action="store_true", help="show the stack of an error")
    run(parser.parse_intermixed_args(argv))
