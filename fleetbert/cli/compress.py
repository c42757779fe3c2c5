"""The command line of `fleetbert compress`."""

from __future__ import annotations

import argparse

from fleetbert import config
from fleetbert.cli import job_options
from fleetbert.compat import environment
from fleetbert.core import extras, stopping

DESCRIPTION = """\
Make a model that meets your budgets: try methods of compression in turn, the cheapest first.

  fleetbert compress --budget-ms 5 --budget-mb 30 --max-drop 0.01 bundle=output/sst2/bundle \\
      data.train=train.tsv selection.data=choose.tsv gate.data=dev.tsv

Candidates join int8, early exit, pruning, a student and a trimmed vocabulary. Each is measured on
selection.data. The first that meets the budgets is compared with float32 once more, on gate.data,
and written to OUTPUT_DIR/bundle; without budgets all are tried, and the fastest is taken, even if
float32 is faster. The exit status is 3 if none meets the budgets. OUTPUT_DIR/report.html shows
accuracy over time and size. A search that was killed goes on when the same command is started
again.
"""

# Options that are keys by a shorter name.
OPTIONS = {
    "budget_ms": "budget.ms",
    "budget_mb": "budget.mb",
    "max_drop": "gate.max_accuracy_drop",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name, key in OPTIONS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="X", help=f"the key {key}")
    job_options.add_job(parser, {"compress": config.Compress})


def run(arguments: argparse.Namespace) -> None:
    extras.need("train", "fleetbert compress")
    given = {key: getattr(arguments, name) for name, key in OPTIONS.items()}
    words = [f"{key}={value}" for key, value in given.items() if value is not None]
    job = config.load_as(config.Compress, arguments.config, [*arguments.overrides, *words])
    environment.import_paddle()
    from fleetbert.compression import search  # with Paddle, which --help has no need of

    stopping.expect()
    search.compress(job)
