"""The command line of `fleetbert tune`."""

from __future__ import annotations

import argparse

from fleetbert import config
from fleetbert.cli import job_options
from fleetbert.compat import environment
from fleetbert.core import extras, stopping

DESCRIPTION = """\
Search for the settings that train best, by trials that data.dev compares.

  fleetbert tune --config mine.yaml --trials 20 \\
      --space "learning_rate=1e-5:1e-3:log,batch_size=16|32,loss.r_drop=0|1"

name=low:high tries numbers between both, with :log evenly by the logarithm; name=a|b tries values.
Trials that fall behind the others are pruned. OUTPUT_DIR/best.yaml is the job with the best
settings, OUTPUT_DIR/report.html shows the trials and what mattered. A search that was killed goes
on when the same command is started again, its running trials from their checkpoints.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--space", required=True, help="what is tried: name=low:high[:log], name=a|b"
    )
    parser.add_argument("--trials", type=int, default=20, help="how many (default: 20)")
    parser.add_argument("--workers", type=int, default=1, help="processes (default: 1)")
    job_options.add_job(parser, {"train": config.Config})


def run(arguments: argparse.Namespace) -> None:
    extras.need("tune", "fleetbert tune")
    job = config.load_as(config.Config, arguments.config, arguments.overrides)
    environment.import_paddle()
    from fleetbert.tune import search  # with Optuna and Paddle, which --help has no need of

    stopping.expect()
    search.tune(job, arguments.space, arguments.trials, arguments.workers)
